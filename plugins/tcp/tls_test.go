package tcp_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// withTLS returns opts with TLS.
func withTLS(opts tcp.Options, cfg *tls.Config) tcp.Options {
	opts.TLS = cfg
	return opts
}

// raw13 is a configuration with which a raw client gets in, if its certificates do.
func raw13(cfg *tls.Config) *tls.Config {
	cfg = cfg.Clone()
	cfg.ServerName, cfg.NextProtos = "127.0.0.1", []string{"quicksilver/1"}
	return cfg
}

// secure begins TLS as a client.
func (r *rawPeer) secure(cfg *tls.Config) *rawPeer {
	r.t.Helper()
	nc := tls.Client(r.tcp, cfg)
	require.NoError(r.t, nc.Handshake())
	r.nc = nc
	return r
}

// secureJoin connects to a node with TLS and completes both handshakes.
func secureJoin(t testing.TB, n *node, cfg *tls.Config, g frame.Greeting) *rawPeer {
	t.Helper()
	r := rawDial(t, n).secure(raw13(cfg))
	r.hello(g)
	r.readHello()
	return r
}

// ping fails the test unless the node answers.
func (r *rawPeer) ping() {
	r.t.Helper()
	r.send(frame.Header{Kind: frame.Ping}, nil)
	r.readKind(frame.Pong)
}

// TestTLSIdentity checks that each side has the verified certificate of the other, and nothing that
// was not verified.
func TestTLSIdentity(t *testing.T) {
	ca := newAuthority(t, "cluster")
	server, client := ca.issue("server", nil), ca.issue("client", nil)
	rows := map[string]struct {
		auth         tls.ClientAuthType
		own          []tls.Certificate
		want         string
		verifyMyself bool
	}{
		"required":           {tls.RequireAndVerifyClientCert, []tls.Certificate{client}, "client", false},
		"optional":           {tls.VerifyClientCertIfGiven, []tls.Certificate{client}, "client", false},
		"optional, none":     {tls.VerifyClientCertIfGiven, nil, "", false},
		"not verified":       {tls.RequireAnyClientCert, []tls.Certificate{client}, "", false},
		"by the user's hook": {tls.RequireAnyClientCert, []tls.Certificate{client}, "client", true},
		"not asked for":      {tls.NoClientCert, []tls.Certificate{client}, "", false},
	}
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		for name, row := range rows {
			t.Run(name, func(t *testing.T) {
				theirs := ca.mutual(server)
				theirs.ClientAuth = row.auth
				if row.verifyMyself {
					theirs.VerifyConnection = func(s tls.ConnectionState) error { return nil }
				}
				b := open(t, "tcp://127.0.0.1:0", withTLS(opts, theirs), na.Config{}, 1)
				a := open(t, "tcp://", withTLS(opts, ca.mutual(row.own...)), na.Config{}, 1)
				sendUnexpected(t, a.ctx(), b.cls.Addr(), 1, "hello", a, b)
				_, from, _ := recvUnexpected(t, b.ctx(), a, b)
				id, ok := b.ctx().Identity(from)
				require.True(t, ok)
				require.True(t, id.Secure)
				require.Equal(t, row.want, id.Name)
				if row.want == "" {
					require.Empty(t, id.Certificates)
				} else {
					require.True(t, client.Leaf.Equal(id.Certificates[0]))
				}
				sendUnexpected(t, b.ctx(), from, 1, "back", a, b)
				_, from, _ = recvUnexpected(t, a.ctx(), a, b)
				id, ok = a.ctx().Identity(from)
				require.True(t, ok)
				require.Equal(t, "server", id.Name)
				require.True(t, server.Leaf.Equal(id.Certificates[0]))
				a.close()
				driveUntil(t, "end of the session", func() bool { return b.ctx().Stats().Peers == 0 }, b)
			})
		}
	})
}

// TestTLSIdentityChain checks that certificates that a peer sends in addition to its chain are not
// in its identity, nor is a chain that was not verified.
func TestTLSIdentityChain(t *testing.T) {
	ca := newAuthority(t, "cluster")
	x := ca.under("x")
	direct, below := ca.issue("client", nil), x.issue("client", nil)
	hook := func(tls.ConnectionState) error { return nil }
	rows := map[string]struct {
		own  tls.Certificate
		auth tls.ClientAuthType
		want []string
	}{
		"none":         {direct, tls.RequireAndVerifyClientCert, []string{"client", "cluster"}},
		"of another":   {withCertificates(direct, x.cert), tls.RequireAndVerifyClientCert, []string{"client", "cluster"}},
		"needed":       {withCertificates(below, x.cert), tls.RequireAndVerifyClientCert, []string{"client", "x", "cluster"}},
		"not verified": {withCertificates(direct, x.cert), tls.RequireAnyClientCert, []string{"client"}},
	}
	names := func(id na.Identity) (names []string) {
		for _, c := range id.Certificates {
			names = append(names, c.Subject.CommonName)
		}
		return names
	}
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		for name, row := range rows {
			t.Run(name, func(t *testing.T) {
				theirs, ours := ca.mutual(row.own), ca.mutual(row.own)
				theirs.ClientAuth, theirs.VerifyConnection = row.auth, hook
				ours.VerifyConnection, ours.InsecureSkipVerify = hook, row.auth == tls.RequireAnyClientCert
				b := open(t, "tcp://127.0.0.1:0", withTLS(opts, theirs), na.Config{}, 1)
				a := open(t, "tcp://", withTLS(opts, ours), na.Config{}, 1)
				sendUnexpected(t, a.ctx(), b.cls.Addr(), 1, "hello", a, b)
				_, from, _ := recvUnexpected(t, b.ctx(), a, b)
				id, ok := b.ctx().Identity(from)
				require.True(t, ok)
				require.Equal(t, row.want, names(id))
				sendUnexpected(t, b.ctx(), from, 1, "back", a, b)
				_, from, _ = recvUnexpected(t, a.ctx(), a, b)
				id, ok = a.ctx().Identity(from)
				require.True(t, ok)
				require.Equal(t, row.want, names(id))
			})
		}
	})
}

// TestTLSIdentityForClient checks that a certificate that is not verified proves nothing, although
// the functions of a configuration that was not used would have verified it.
func TestTLSIdentityForClient(t *testing.T) {
	ca, unknown := newAuthority(t, "cluster"), newAuthority(t, "stranger")
	server, client := ca.issue("server", nil), unknown.issue("client", nil)
	hook := func(tls.ConnectionState) error { return nil }
	peer := func([][]byte, [][]*x509.Certificate) error { return nil }
	of := func(change func(c *tls.Config)) *tls.Config {
		c := ca.mutual(server)
		c.ClientAuth = tls.RequireAnyClientCert
		change(c)
		return c
	}
	nobody := of(func(*tls.Config) {})
	conn, cert := of(func(c *tls.Config) { c.VerifyConnection = hook }), of(func(c *tls.Config) { c.VerifyPeerCertificate = peer })
	rows := map[string]struct {
		cfg, chosen *tls.Config
		want        string
	}{
		"only the outer one looks":         {conn, nobody, ""},
		"only at the outer's certificates": {cert, nobody, ""},
		"only the chosen one looks":        {nobody, conn, "client"},
		"only at the chosen's":             {nobody, cert, "client"},
		"none was chosen":                  {conn, nil, "client"},
		"none was chosen, nobody looks":    {nobody, nil, ""},
	}
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		for name, row := range rows {
			t.Run(name, func(t *testing.T) {
				cfg := row.cfg.Clone()
				cfg.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return row.chosen, nil }
				b := open(t, "tcp://127.0.0.1:0", withTLS(opts, cfg), na.Config{}, 1)
				own := ca.mutual()
				own.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &client, nil }
				a := open(t, "tcp://", withTLS(opts, own), na.Config{}, 1)
				sendUnexpected(t, a.ctx(), b.cls.Addr(), 1, "hello", a, b)
				_, from, _ := recvUnexpected(t, b.ctx(), a, b)
				id, ok := b.ctx().Identity(from)
				require.True(t, ok)
				require.True(t, id.Secure)
				require.Equal(t, row.want, id.Name)
				require.Equal(t, row.want == "", id.Certificates == nil)
			})
		}
	})
}

// TestTLSRefused (F83) checks that a peer that cannot prove what is required is refused before
// anything of a message leaves, gets an error with the remedy, and leaves nothing; others are
// served.
func TestTLSRefused(t *testing.T) {
	t.Parallel()
	ca, unknown := newAuthority(t, "cluster"), newAuthority(t, "stranger")
	server, client := ca.issue("server", nil), ca.issue("client", nil)
	expired := func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }
	early := func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }
	elsewhere := func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 2)} }
	noClient := func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }
	noServer := func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }
	wrongKey := func(c tls.Certificate) tls.Certificate {
		c.PrivateKey = newKey(t)
		return c
	}
	good := ca.mutual(server)
	trustAll := ca.mutual(client)
	trustAll.RootCAs = unknown.pool
	oneTwo := ca.mutual(client)
	rows := map[string]struct {
		server, client *tls.Config
		want           string
	}{
		"unknown authority of the server": {good, trustAll, "add it to RootCAs in the local tls.Config (LoadTLS: the ca file) (CN=cluster)"},
		"expired server":                  {ca.mutual(ca.issue("server", expired)), ca.mutual(client), "has expired or is not yet valid (subject "},
		"early server":                    {ca.mutual(ca.issue("server", early)), ca.mutual(client), "not yet valid"},
		"server of another host":          {ca.mutual(ca.issue("server", elsewhere)), ca.mutual(client), "set ServerName"},
		"server with a client's":          {ca.mutual(ca.issue("server", noServer)), ca.mutual(client), "incompatible key usage"},
		"server with the wrong key":       {ca.mutual(wrongKey(server)), ca.mutual(client), "invalid signature"},
		"no certificate":                  {good, ca.mutual(), "requires a certificate; set Certificates in the local tls.Config (LoadTLS: the cert and key files)"},
		"unknown authority of the client": {good, &tls.Config{
			Certificates: []tls.Certificate{unknown.issue("client", nil)}, RootCAs: ca.pool,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				c := unknown.issue("client", nil)
				return &c, nil
			},
		}, "does not trust the authority of the local certificate; add it to ClientCAs in the peer's tls.Config (LoadTLS: the ca file)"},
		"expired client":            {good, ca.mutual(ca.issue("client", expired)), "as expired or not yet valid"},
		"client with a server's":    {good, ca.mutual(ca.issue("client", noClient)), "rejected the local certificate"},
		"client with the wrong key": {good, ca.mutual(wrongKey(client)), "local private key does not match"},
		"plain client":              {good, nil, "TLS is required here: set Config.TLS, or tcp.Options.TLS "},
		"plain server":              {nil, oneTwo, "does not use TLS: set Config.TLS, or tcp.Options.TLS "},
	}
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		t.Parallel()
		for name, row := range rows {
			t.Run(name, func(t *testing.T) {
				opts := opts
				opts.MaxHalfOpen = 2 // a refused connection does not count for long
				b := open(t, "tcp://127.0.0.1:0", withTLS(opts, row.server), na.Config{}, 1)
				a := open(t, "tcp://", withTLS(opts, row.client), na.Config{}, 1)
				recv, got := newOp(b.ctx())
				require.NoError(t, b.ctx().RecvUnexpected(recv))
				for range 3 {
					o, end := newOp(a.ctx())
					require.NoError(t, a.ctx().SendUnexpected(o, b.cls.Addr(), 1, []byte("secret")))
					driveUntil(t, "refusal", end.done, a, b)
					requireCode(t, na.ErrUnreachable, end.Err)
					require.NotErrorIs(t, end.Err, na.ErrPermission, "an error has one code")
					require.Equal(t, na.NotRun, end.Fate)
					require.ErrorContains(t, end.Err, row.want)
				}
				require.Zero(t, b.ctx().Stats().Peers)
				require.Zero(t, b.ctx().Stats().Reserved)
				require.False(t, got.done())
				if row.server == good {
					c := open(t, "tcp://", withTLS(opts, ca.mutual(client)), na.Config{}, 1)
					sendUnexpected(t, c.ctx(), b.cls.Addr(), 1, "served", b, c)
					r := requireSuccess(t, "message", got, b, c)
					require.Equal(t, "served", string(r.Envelope.Data))
					r.Envelope.Free()
				}
			})
		}
	})
}

// TestTLSDowngrade (F83) checks that nothing older than TLS 1.3 and no other protocol is accepted,
// with any configuration.
func TestTLSDowngrade(t *testing.T) {
	ca := newAuthority(t, "cluster")
	cfg := ca.mutual(ca.issue("node", nil))
	cfg.MinVersion, cfg.NextProtos = tls.VersionTLS10, []string{"h2"}
	oneTwo := raw13(cfg)
	oneTwo.MaxVersion = tls.VersionTLS12
	other := raw13(cfg)
	other.NextProtos = []string{"h2"}
	none := raw13(cfg)
	none.NextProtos = nil
	rows := map[string]struct {
		peer                 *tls.Config
		asClient, asListener string
	}{
		"TLS 1.2":        {oneTwo, "protocol version not supported", "does not support TLS 1.3"},
		"other protocol": {other, "no application protocol", "but not the protocol"},
		"no protocol":    {none, "", "but not the protocol"},
	}
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		for name, row := range rows {
			t.Run(name, func(t *testing.T) {
				n := open(t, "tcp://127.0.0.1:0", withTLS(opts, cfg), na.Config{}, 1)
				r := rawDial(t, n)
				nc := tls.Client(r.tcp, row.peer)
				if err := nc.Handshake(); row.asClient != "" {
					require.ErrorContains(t, err, row.asClient)
				} else {
					require.NoError(t, err)
				}
				_, err := nc.Read(make([]byte, 1))
				require.Error(t, err)
				require.Zero(t, n.ctx().Stats().Peers)

				l := rawListen(t)
				o, end := newOp(n.ctx())
				require.NoError(t, n.ctx().SendUnexpected(o, l.addr(), 1, []byte("secret")))
				_ = n.ctx().Progress(0)
				peer := tls.Server(l.accept(), row.peer)
				var heard bytes.Buffer
				var both sync.WaitGroup
				both.Go(func() {
					_, _ = io.Copy(&heard, peer)
					_ = peer.Close()
				})
				driveUntil(t, "refusal", end.done, n)
				both.Wait()
				requireCode(t, na.ErrUnreachable, end.Err)
				require.ErrorContains(t, end.Err, row.asListener)
				require.Zero(t, heard.Len(), "bytes that the peer received")
			})
		}
	})
}

// TestTLSBroken checks that a fault of TLS, or its end, ends that connection and no other. An end
// without a close_notify is distinguished from one with it.
func TestTLSBroken(t *testing.T) {
	cfg := mutualTLS(t)
	rows := map[string]struct {
		do   func(r *rawPeer)
		want string
	}{
		"garbage":        {func(r *rawPeer) { rawWrite(r, bytes.Repeat([]byte("garbage."), 100)) }, "record"},
		"damaged record": {func(r *rawPeer) { rawWrite(r, append([]byte{23, 3, 3, 0, 64}, make([]byte, 64)...)) }, "bad record MAC"},
		"huge record":    {func(r *rawPeer) { rawWrite(r, append([]byte{23, 3, 3, 0xff, 0xff}, make([]byte, 64)...)) }, "oversized record"},
		"plain alert":    {func(r *rawPeer) { rawWrite(r, []byte{21, 3, 3, 0, 2, 1, 0}) }, "bad record MAC"},
		"plain frame": {func(r *rawPeer) {
			h := frame.Header{Kind: frame.Ping}
			rawWrite(r, h.Append(nil, nil))
		}, "record"},
		"cut": {func(r *rawPeer) { require.NoError(r.t, r.tcp.CloseWrite()) }, "without a TLS close_notify"},
		"cut in the middle of a record": {func(r *rawPeer) {
			rawWrite(r, []byte{23, 3, 3, 0, 64, 1, 2, 3})
			require.NoError(r.t, r.tcp.CloseWrite())
		}, "without a TLS close_notify"},
		"announced": {func(r *rawPeer) { require.NoError(r.t, r.nc.(*tls.Conn).CloseWrite()) }, "closed by peer"},
	}
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		n := open(t, "tcp://127.0.0.1:0", withTLS(opts, cfg), na.Config{}, 1)
		good := secureJoin(t, n, cfg, greeting())
		for name, row := range rows {
			t.Run(name, func(t *testing.T) {
				var faults []error
				n.ctx().OnFault(func(_ na.Addr, err error) { faults = append(faults, err) })
				bad := secureJoin(t, n, cfg, greeting())
				row.do(bad)
				driveUntil(t, "fault", func() bool { return len(faults) > 0 }, n)
				requireCode(t, na.ErrPeerLost, faults[0])
				require.ErrorContains(t, faults[0], row.want)
				_, _ = io.Copy(io.Discard, bad.tcp) // ends
				require.Equal(t, 1, n.ctx().Stats().Peers)
				good.ping()
			})
		}
	})
}

// rawWrite writes past TLS.
func rawWrite(r *rawPeer, b []byte) {
	r.t.Helper()
	_, err := r.tcp.Write(b)
	require.NoError(r.t, err)
}

// TestTLSEnds checks that the close of a context is announced in the session, and by the
// close_notify of TLS.
func TestTLSEnds(t *testing.T) {
	cfg := mutualTLS(t)
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		n := open(t, "tcp://127.0.0.1:0", withTLS(opts, cfg), na.Config{}, 1)
		r := rawDial(t, n)
		rec := takeRecords(r, cfg)
		r.hello(greeting())
		r.readHello()
		n.ctx().Close()
		h, _ := r.readKind(frame.Goaway)
		require.Equal(t, na.ErrClosed, na.Code(h.Tag))
		_, err := r.nc.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
		require.True(t, rec.notified)
	})
}

// rawConn hides everything but Read.
type rawConn struct{ io.Reader }

// TestTLSBadHello checks that inside TLS invalid peers are refused as without it.
func TestTLSBadHello(t *testing.T) {
	cfg := mutualTLS(t)
	rows := map[string]struct {
		send []byte
		want na.Code
		text string
	}{
		"zeroes":  {make([]byte, 64), na.ErrProtocol, "KIND0"},
		"context": {helloFrame(func(g *frame.Greeting) { g.Target = 300 }), na.ErrNoEntry, "no such context: 300"},
		"version": {helloFrame(func(g *frame.Greeting) {
			g.Versions = frame.Range{Oldest: frame.Version + 1, Newest: frame.Version + 1}
		}), na.ErrVersion, fmt.Sprintf("the listening side %d; upgrade the listening side", frame.Version)},
	}
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		n := open(t, "tcp://127.0.0.1:0", withTLS(opts, cfg), na.Config{}, 1)
		for name, row := range rows {
			t.Run(name, func(t *testing.T) {
				r := rawDial(t, n).secure(raw13(cfg))
				r.write(row.send)
				got, text := r.readEnd()
				require.Equal(t, row.want, got)
				require.Contains(t, text, row.text)
			})
		}
		// A HELLO may arrive byte by byte, and bytes right behind it are not lost.
		r := rawDial(t, n).secure(raw13(cfg))
		ping := frame.Header{Kind: frame.Ping, Credit: 32}
		hello := helloFrame(func(*frame.Greeting) {})
		for _, b := range hello[:20] {
			r.write([]byte{b})
		}
		r.write(ping.AppendFront(hello[20:], 0))
		r.readHello()
		r.readKind(frame.Pong)
	})
}

// TestTLSReplay (F78) checks that a session that was recorded and is played again opens nothing.
func TestTLSReplay(t *testing.T) {
	cfg := mutualTLS(t)
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		b := open(t, "tcp://127.0.0.1:0", withTLS(opts, cfg), na.Config{}, 1)
		a := open(t, "tcp://", withTLS(opts, cfg), na.Config{}, 1)
		l := rawListen(t)
		o, sent := newOp(a.ctx())
		require.NoError(t, a.ctx().SendUnexpected(o, l.addr(), 1, []byte("once")))
		_ = a.ctx().Progress(0)
		var tape bytes.Buffer // data from a
		near := l.accept()
		far, err := net.Dial("tcp", hostPort(b))
		require.NoError(t, err)
		var both sync.WaitGroup
		both.Go(func() {
			_, _ = io.Copy(io.MultiWriter(far, &tape), rawConn{near}) // no splice, whose pipes stay
			_ = far.Close()
		})
		both.Go(func() {
			_, _ = io.Copy(near, rawConn{far})
			_ = near.Close()
		})
		requireSuccess(t, "send", sent, a, b)
		text, _, _ := recvUnexpected(t, b.ctx(), a, b)
		require.Equal(t, "once", text)
		a.close()
		both.Wait()
		driveUntil(t, "end of the session", func() bool { return b.ctx().Stats().Peers == 0 }, b)

		recv, got := newOp(b.ctx())
		require.NoError(t, b.ctx().RecvUnexpected(recv))
		for _, n := range []int{tape.Len(), tape.Len() / 2, 600} {
			r := rawDial(t, b)
			rawWrite(r, tape.Bytes()[:n])
			require.NoError(t, r.tcp.CloseWrite())
			var answer bytes.Buffer
			var end sync.WaitGroup
			end.Go(func() { _, _ = io.Copy(&answer, r.tcp) })
			end.Wait()
			require.Zero(t, b.ctx().Stats().Peers)
		}
		_ = b.ctx().Progress(0)
		require.False(t, got.done(), "a message was accepted twice")
	})
}

// TestTLSResumesNothing checks that no tickets are given, and none are used: every connection
// authenticates the peer anew.
func TestTLSResumesNothing(t *testing.T) {
	cfg := mutualTLS(t)
	tickets := tls.NewLRUClientSessionCache(8)
	cfg.ClientSessionCache = tickets
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		n := open(t, "tcp://127.0.0.1:0", withTLS(opts, cfg), na.Config{}, 1)
		for range 2 {
			r := secureJoin(t, n, cfg, greeting())
			r.ping() // a ticket would have arrived before it
			require.False(t, r.nc.(*tls.Conn).ConnectionState().DidResume)
			ticket, _ := tickets.Get("127.0.0.1")
			require.Nil(t, ticket)
		}

		// A listener that issues some is not offered them the second time either.
		l := rawListen(t)
		for range 2 {
			m := open(t, "tcp://", withTLS(opts, cfg), na.Config{}, 1)
			o, end := newOp(m.ctx())
			require.NoError(t, m.ctx().SendUnexpected(o, l.addr(), 1, []byte("hello")))
			_ = m.ctx().Progress(0)
			r := newRaw(t, l.accept())
			nc := tls.Server(r.tcp, raw13(cfg))
			r.nc = nc
			r.readHello()
			r.hello(greeting())
			requireSuccess(t, "hello", end, m)
			require.False(t, nc.ConnectionState().DidResume)
			m.close()
		}
	})
}

// TestTLSConfigForClient checks that the rules are enforced too for the configuration that the
// user's function chooses for a client.
func TestTLSConfigForClient(t *testing.T) {
	ca := newAuthority(t, "cluster")
	cfg := ca.mutual(ca.issue("node", nil))
	loose := cfg.Clone()
	loose.NextProtos, loose.ClientAuth = []string{"h2"}, tls.NoClientCert
	byClient := &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return loose, nil }}
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		n := open(t, "tcp://127.0.0.1:0", withTLS(opts, byClient), na.Config{}, 1)
		secureJoin(t, n, ca.mutual(), greeting()).ping() // without a certificate, as the function requires
		r := rawDial(t, n)
		old := raw13(ca.mutual())
		old.MaxVersion = tls.VersionTLS12
		require.Error(t, tls.Client(r.tcp, old).Handshake())
	})
}

// TestIdentityWithoutTLS checks that without TLS no identity is proven.
func TestIdentityWithoutTLS(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		a := open(t, "tcp://", opts, na.Config{}, 1)
		b := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
		sendUnexpected(t, a.ctx(), b.cls.Addr(), 1, "hello", a, b)
		_, from, _ := recvUnexpected(t, b.ctx(), a, b)
		id, ok := b.ctx().Identity(from)
		require.True(t, ok)
		require.NotZero(t, id.Incarnation)
		_, err := netip.ParseAddrPort(id.Remote)
		require.NoError(t, err)
		id.Incarnation, id.Host, id.Process, id.Remote = [16]byte{}, "", "", ""
		require.Equal(t, na.Identity{Transport: "tcp"}, id)
		_, ok = b.ctx().Identity(from.Named())
		require.False(t, ok)
	})
}

// TestTLSHalfOpen checks that the resources of peers that are not authenticated are limited: in
// number, in time, and in memory, wherever in the handshake they stop. A peer that has presented
// certificates that are accepted may hold twice as much.
func TestTLSHalfOpen(t *testing.T) {
	if !leak.Alone(t) {
		return
	}
	const limit, most, mostShown = 100, 64 << 10, 128 << 10
	cfg := mutualTLS(t)
	wide := raw13(cfg) // its first message is almost as long as it may be
	for range 22 {
		wide.NextProtos = append(wide.NextProtos, string(bytes.Repeat([]byte("x"), 100)))
	}
	small, large := clientHello(t, raw13(cfg)), clientHello(t, wide)
	require.Greater(t, len(large), 3700)
	chain := raw13(cfg) // nor is it far from the limit
	for range 12 {
		own := &chain.Certificates[0]
		chain.Certificates = []tls.Certificate{{Certificate: append(slices.Clone(own.Certificate), own.Certificate[0]), PrivateKey: own.PrivateKey}}
	}
	stages := map[string][]byte{
		"silent": nil, "a header": {22, 3, 1, 0x40, 0}, "whole": small, "large": large,
		"certificates": nil,
	}
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		for name, stage := range stages {
			t.Run(name, func(t *testing.T) {
				opts := withTLS(opts, cfg)
				opts.MaxHalfOpen = limit
				if opts.HandshakeTimeout = time.Minute; name == "silent" {
					opts.HandshakeTimeout = time.Second
				}
				n := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
				settled := secureJoin(t, n, cfg, greeting())
				before := memoryInUse()
				idle := make([]*rawPeer, limit)
				for i := range idle {
					idle[i] = rawDial(t, n)
					rawWrite(idle[i], stage)
					if name == "certificates" {
						halfProof(idle[i], chain)
					}
				}
				if name == "whole" || name == "large" { // it is answered
					for _, r := range idle {
						_, err := r.nc.Read(make([]byte, 1))
						require.NoError(t, err)
					}
				}
				settled.ping() // earlier bytes are in flight
				used := int(memoryInUse()-before) / limit
				if raceflag.Enabled { // which takes memory of its own
					used /= 2
				}
				t.Logf("%d bytes for each", used)
				if name != "certificates" {
					require.Less(t, used, most)
				}
				require.Less(t, used, mostShown)
				rawDial(t, n) // the oldest makes room, although it has a minute
				_, err := io.Copy(io.Discard, idle[0].tcp)
				require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
				settled.ping()
				for _, r := range idle {
					if name != "silent" {
						_ = r.nc.Close()
					} else { // it is closed
						_, _ = io.Copy(io.Discard, r.nc)
					}
				}
				driveUntil(t, "room", func() bool { return !isFull(t, n, cfg) }, n)
				secureJoin(t, n, cfg, greeting()).ping()
			})
		}
	})
}

// halfProof does the handshake but for the last hundred bytes.
func halfProof(r *rawPeer, cfg *tls.Config) {
	r.t.Helper()
	part := &partialWriter{Conn: r.tcp}
	require.NoError(r.t, tls.Client(part, cfg).Handshake())
	last := part.last
	require.Greater(r.t, len(last), 4<<10)
	rawWrite(r, last[:len(last)-100])
}

// partialWriter holds back the end of the last write.
type partialWriter struct {
	net.Conn
	last []byte
}

func (p *partialWriter) Write(b []byte) (int, error) {
	if _, err := p.Conn.Write(p.last); err != nil {
		return 0, err
	}
	p.last = bytes.Clone(b)
	return len(b), nil
}

// Read sends the held bytes first.
func (p *partialWriter) Read(b []byte) (int, error) {
	if _, err := p.Write(nil); err != nil {
		return 0, err
	}
	return p.Conn.Read(b)
}

// TestTLSTooMuch checks that a peer that sends too much before it is authenticated is refused.
func TestTLSTooMuch(t *testing.T) {
	cfg := mutualTLS(t)
	wide := raw13(cfg)
	for range 30 {
		wide.NextProtos = append(wide.NextProtos, string(bytes.Repeat([]byte("x"), 100)))
	}
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		n := open(t, "tcp://127.0.0.1:0", withTLS(opts, cfg), na.Config{}, 1)
		r := rawDial(t, n)
		require.Error(t, tls.Client(r.tcp, wide).Handshake())
		secureJoin(t, n, cfg, greeting()).ping()
	})
}

// isFull reports whether a node takes no connection now.
func isFull(t testing.TB, n *node, cfg *tls.Config) bool {
	nc, err := net.Dial("tcp", hostPort(n))
	require.NoError(t, err)
	defer nc.Close()
	return tls.Client(nc, raw13(cfg)).Handshake() != nil
}

// memoryInUse returns the memory in use: of the heap and of stacks.
func memoryInUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// clientHello is the first message of a client.
func clientHello(t testing.TB, cfg *tls.Config) []byte {
	t.Helper()
	here, there := net.Pipe()
	defer here.Close()
	hello := make(chan []byte)
	go func() {
		var b bytes.Buffer
		for {
			chunk := make([]byte, 64<<10)
			n, err := there.Read(chunk)
			b.Write(chunk[:n])
			if b.Len() > 5 && b.Len() >= 5+int(b.Bytes()[3])<<8+int(b.Bytes()[4]) || err != nil {
				_ = there.Close()
				hello <- b.Bytes()
				return
			}
		}
	}()
	require.Error(t, tls.Client(here, cfg).Handshake())
	return <-hello
}

// TestTLSSlowFunction checks that a handshake in a function of the program counts as half open
// until the function returns, though its time is over.
func TestTLSSlowFunction(t *testing.T) {
	t.Parallel()
	const limit = 4
	cfg := mutualTLS(t)
	hello := clientHello(t, raw13(cfg))
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		t.Parallel()
		var running atomic.Int32
		returns := make(chan struct{})
		slow := cfg.Clone()
		slow.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
			running.Add(1)
			<-returns
			return nil, nil
		}
		opts.TLS, opts.MaxHalfOpen, opts.HandshakeTimeout = slow, limit, 200*time.Millisecond
		n := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
		var kept [limit]*rawPeer
		for i := range kept {
			kept[i] = rawDial(t, n)
			rawWrite(kept[i], hello)
		}
		driveUntil(t, "functions", func() bool { return running.Load() == limit }, n)
		for range 3 {
			more := rawDial(t, n)
			_, _ = more.tcp.Write(hello)
			_, _ = io.Copy(io.Discard, more.nc)
		}
		require.EqualValues(t, limit, running.Load())
		close(returns)
		driveUntil(t, "room", func() bool { return !isFull(t, n, cfg) }, n)
		for _, r := range kept {
			_, _ = io.Copy(io.Discard, r.nc)
		}
		require.Zero(t, n.ctx().Stats().Peers)
	})
}

// TestTLSPanic checks that a function of the program that panics, or ends its goroutine, ends the
// connection that it was called for, and that counts as half open no longer.
func TestTLSPanic(t *testing.T) {
	t.Parallel()
	cfg := mutualTLS(t)
	stops := map[string]func(){"panic": func() { panic("on purpose") }, "end of the goroutine": runtime.Goexit}
	places := map[string]func(c *tls.Config, f func()){
		"VerifyConnection": func(c *tls.Config, f func()) {
			c.VerifyConnection = func(tls.ConnectionState) error { f(); return nil }
		},
		"Time": func(c *tls.Config, f func()) { c.Time = func() time.Time { f(); return time.Now() } },
	}
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		t.Parallel()
		for stop, f := range stops {
			for place, set := range places {
				t.Run(stop+" in "+place, func(t *testing.T) {
					var fine atomic.Bool
					own := cfg.Clone()
					set(own, func() {
						if !fine.Load() {
							f()
						}
					})
					opts := withTLS(opts, own)
					opts.MaxHalfOpen, opts.HandshakeTimeout = 2, time.Hour
					timeout := 200 * time.Millisecond // a goroutine that has ended returns nothing: only this ends the attempt
					if stop == "panic" {
						timeout = patience
					}
					n := open(t, "tcp://127.0.0.1:0", opts, na.Config{ConnectTimeout: timeout}, 1)
					for range 3 {
						r := rawDial(t, n)
						_ = tls.Client(r.tcp, raw13(cfg)).Handshake() // the proof may be in flight
						_, _ = io.Copy(io.Discard, r.tcp)
						_ = r.tcp.Close()
					}
					l := rawListen(t)
					o, end := newOp(n.ctx())
					require.NoError(t, n.ctx().SendUnexpected(o, l.addr(), 1, []byte("x")))
					_ = n.ctx().Progress(0)
					r := newRaw(t, l.accept())
					var peer sync.WaitGroup
					peer.Go(func() { _ = tls.Server(r.tcp, raw13(cfg)).Handshake() })
					driveUntil(t, "end of the send", end.done, n)
					peer.Wait()
					requireCode(t, na.ErrUnreachable, end.Err)
					if stop == "panic" {
						require.ErrorContains(t, end.Err, "tls.Config panicked")
					}
					fine.Store(true)
					secureJoin(t, n, cfg, greeting()).ping()
				})
			}
		}
	})
}

// TestTLSPeerSilent checks that a dial of a peer that accepts, and does not continue TLS, times
// out.
func TestTLSPeerSilent(t *testing.T) {
	t.Parallel()
	cfg := mutualTLS(t)
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		t.Parallel()
		opts.TLS, opts.HandshakeTimeout = cfg, 200*time.Millisecond
		l := rawListen(t)
		n := open(t, "tcp://", opts, na.Config{}, 1)
		o, end := newOp(n.ctx())
		require.NoError(t, n.ctx().SendUnexpected(o, l.addr(), 1, []byte("x")))
		driveUntil(t, "timeout", end.done, n)
		requireCode(t, na.ErrUnreachable, end.Err)
		require.ErrorContains(t, end.Err, "TLS: handshake timeout")
		require.Equal(t, na.NotRun, end.Fate)

		o, end = newOp(n.ctx()) // closing does not wait for it; at another address, as the first is not dialed again at once
		require.NoError(t, n.ctx().SendUnexpected(o, rawListen(t).addr(), 1, []byte("x")))
		n.ctx().Close()
		driveUntil(t, "close", end.done, n)
		requireCode(t, na.ErrClosed, end.Err)
	})
}

// TestTLSNameOfAnother checks that a peer whose certificate is not for the address at which it
// claims to listen is not taken for the owner of that address.
func TestTLSNameOfAnother(t *testing.T) {
	ca := newAuthority(t, "cluster")
	cfg := ca.mutual(ca.issue("node", nil))
	other := ca.mutual(ca.issue("other", func(c *x509.Certificate) { c.IPAddresses = nil }))
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		n := open(t, "tcp://127.0.0.1:0", withTLS(opts, cfg), na.Config{}, 1)
		l := rawListen(t) // the true one
		g := greeting()
		g.Listen = l.addr().Name()
		liar := secureJoin(t, n, other, g)
		o, end := newOp(n.ctx())
		require.NoError(t, n.ctx().SendUnexpected(o, l.addr(), 1, []byte("secret")))
		_ = n.ctx().Progress(0)
		r := newRaw(t, l.accept())
		r.nc = tls.Server(r.tcp, raw13(cfg))
		r.readHello()
		g.Incarnation = greeting().Incarnation
		r.hello(g)
		requireSuccess(t, "message", end, n)
		_, payload := r.readKind(frame.Unexpected)
		require.Equal(t, "secret", string(payload))
		liar.ping()

		// A peer whose certificate is for the address gets it as its name.
		l = rawListen(t)
		g = greeting()
		g.Listen = l.addr().Name()
		true1 := secureJoin(t, n, cfg, g)
		sendUnexpected(t, n.ctx(), l.addr(), 1, "hello", n)
		_, payload = true1.readKind(frame.Unexpected)
		require.Equal(t, "hello", string(payload))

		// So does one whose chain was not verified yet.
		own := cfg.Clone()
		own.ClientAuth, own.VerifyConnection = tls.RequireAnyClientCert, func(tls.ConnectionState) error { return nil }
		m := open(t, "tcp://127.0.0.1:0", withTLS(opts, own), na.Config{}, 1)
		x := ca.under("x")
		true2 := secureJoin(t, m, ca.mutual(withCertificates(x.issue("below", nil), x.cert)), g)
		sendUnexpected(t, m.ctx(), l.addr(), 1, "hello", m)
		_, payload = true2.readKind(frame.Unexpected)
		require.Equal(t, "hello", string(payload))
	})
}

// TestTLSOptions checks that options that cannot work are an error of Open.
func TestTLSOptions(t *testing.T) {
	_, err := na.Open("tcp://", na.Config{Plugins: []na.Plugin{tcp.New(tcp.Options{TLS: &tls.Config{MaxVersion: tls.VersionTLS12}})}})
	requireCode(t, na.ErrInvalid, err)
	require.ErrorContains(t, err, "TLS.MaxVersion is TLS 1.2")
	_, err = na.Open("tcp://127.0.0.1:0", na.Config{Plugins: []na.Plugin{tcp.New(tcp.Options{TLS: &tls.Config{}})}})
	requireCode(t, na.ErrInvalid, err)
	require.ErrorContains(t, err, "no certificate")
}

// withLongChain returns cfg with a chain of n certificates.
func withLongChain(cfg *tls.Config, n int) *tls.Config {
	cfg = cfg.Clone()
	c := cfg.Certificates[0]
	for range n - 1 {
		c.Certificate = append(c.Certificate[:len(c.Certificate):len(c.Certificate)], c.Certificate[0])
	}
	cfg.Certificates = []tls.Certificate{c}
	return cfg
}

// TestTLSLongChain checks that a client whose certificates are too long gets an error with the
// reason and the remedy; the server logs and counts it.
func TestTLSLongChain(t *testing.T) {
	cfg := mutualTLS(t)
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		var log bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&log, nil))
		b := open(t, "tcp://127.0.0.1:0", withTLS(opts, cfg), na.Config{Logger: logger}, 1)
		a := open(t, "tcp://", withTLS(opts, withLongChain(cfg, 40)), na.Config{}, 1)
		o, end := newOp(a.ctx())
		require.NoError(t, a.ctx().SendUnexpected(o, b.cls.Addr(), 1, []byte("secret")))
		driveUntil(t, "refusal", end.done, a, b)
		requireCode(t, na.ErrUnreachable, end.Err)
		require.ErrorContains(t, end.Err, "the local certificate chain is too long: the limit of a listener is 6144 bytes")
		require.ErrorContains(t, end.Err, "use fewer intermediate certificates")
		driveUntil(t, "it is counted", func() bool { return b.ctx().Stats().HandshakesFailed > 0 }, a, b)
		require.Equal(t, 1, strings.Count(log.String(), "the certificate chain of the peer is too long"), log.String())
		c := open(t, "tcp://", withTLS(opts, withLongChain(cfg, 3)), na.Config{}, 1)
		sendUnexpected(t, c.ctx(), b.cls.Addr(), 1, "served", b, c)
	})
}

// TestTLSAcceptReason checks that the log line of a server that rejects a client's certificate names
// the field of a tls.Config with which a server lists authorities.
func TestTLSAcceptReason(t *testing.T) {
	ca, unknown := newAuthority(t, "cluster"), newAuthority(t, "stranger")
	server, stranger := ca.issue("server", nil), unknown.issue("client", nil)
	client := &tls.Config{
		RootCAs:              ca.pool,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &stranger, nil },
	}
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		var log bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&log, nil))
		b := open(t, "tcp://127.0.0.1:0", withTLS(opts, ca.mutual(server)), na.Config{Logger: logger}, 1)
		a := open(t, "tcp://", withTLS(opts, client), na.Config{}, 1)
		o, end := newOp(a.ctx())
		require.NoError(t, a.ctx().SendUnexpected(o, b.cls.Addr(), 1, []byte("secret")))
		driveUntil(t, "refusal", end.done, a, b)
		driveUntil(t, "it is counted", func() bool { return b.ctx().Stats().HandshakesFailed > 0 }, a, b)
		require.Contains(t, log.String(), "add it to ClientCAs in the local tls.Config (LoadTLS: the ca file) (CN=stranger)")
	})
}
