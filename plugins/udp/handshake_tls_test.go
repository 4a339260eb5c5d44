package udp_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/relay"
	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp"
)

// mutualTLS is a configuration for both roles with one certificate, for any address.
func mutualTLS() *tls.Config {
	c := testcert.New()
	cfg := mutual(c, c)
	cfg.ServerName = "127.0.0.1"
	return cfg
}

// mutual is a configuration in which both sides present a certificate, own here, and trust the
// others.
func mutual(own tls.Certificate, trusted ...tls.Certificate) *tls.Config {
	pool := x509.NewCertPool()
	for _, c := range trusted {
		pool.AddCert(c.Leaf)
	}
	return &tls.Config{Certificates: []tls.Certificate{own}, RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
}

func newNamedCert(name string, change ...func(c *x509.Certificate)) tls.Certificate {
	return testcert.NewWith(func(c *x509.Certificate) {
		c.Subject.CommonName = name
		for _, f := range change {
			f(c)
		}
	})
}

// withTLS returns opts with TLS.
func withTLS(opts udp.Options, cfg *tls.Config) udp.Options {
	opts.TLS = cfg
	return opts
}

// TestTLSIdentity checks that each side has the verified certificate of the other, and nothing that
// was not verified. A peer that proves the name that a dial of its address would require has its
// address for a name.
func TestTLSIdentity(t *testing.T) {
	server, client := newNamedCert("server"), newNamedCert("client")
	rows := map[string]struct {
		auth tls.ClientAuthType
		own  []tls.Certificate
		hook bool
		want string
	}{
		"required":           {tls.RequireAndVerifyClientCert, []tls.Certificate{client}, false, "client"},
		"optional, none":     {tls.VerifyClientCertIfGiven, nil, false, ""},
		"not verified":       {tls.RequireAnyClientCert, []tls.Certificate{client}, false, ""},
		"by the user's hook": {tls.RequireAnyClientCert, []tls.Certificate{client}, true, "client"},
		"chosen for it":      {tls.RequireAndVerifyClientCert, []tls.Certificate{client}, false, "client"},
	}
	eachSocket(t, func(t *testing.T, opts udp.Options) {
		for name, row := range rows {
			t.Run(name, func(t *testing.T) {
				theirs, ours := mutual(server, server, client), mutual(client, server, client)
				theirs.ClientAuth, ours.Certificates = row.auth, row.own
				if row.hook {
					theirs.VerifyConnection = func(tls.ConnectionState) error { return nil }
				}
				var from net.Addr
				if name == "chosen for it" {
					chosen := theirs
					theirs = theirs.Clone()
					theirs.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
						from = hello.Conn.RemoteAddr()
						return chosen, nil
					}
				}
				b := open(t, "udp://127.0.0.1:0", withTLS(opts, theirs), 1)
				at := "udp://127.0.0.1:0"
				if row.own == nil {
					at = "udp://" // a peer without a certificate cannot listen
				}
				a := open(t, at, withTLS(opts, ours), 1)
				sender := sendMessage(t, a.ctxs[0], b.cls.Addr(), b.ctxs[0], "hello", a, b)
				id, ok := b.ctxs[0].Identity(sender)
				require.True(t, ok)
				require.True(t, id.Secure)
				require.Equal(t, row.want, id.Name)
				if from != nil {
					require.Equal(t, a.cls.Addr().Name(), "udp://"+from.String())
				}
				if row.want != "" {
					require.True(t, client.Leaf.Equal(id.Certificates[0]))
					require.Equal(t, a.cls.Addr().Name(), sender.Name())
				} else {
					require.Empty(t, id.Certificates)
					require.Contains(t, sender.Name(), "udp://@")
				}
				sender = sendMessage(t, b.ctxs[0], sender, a.ctxs[0], "back", a, b)
				id, ok = a.ctxs[0].Identity(sender)
				require.True(t, ok)
				require.Equal(t, "server", id.Name)
			})
		}
	})
}

// TestTLSRefused checks that a peer that fails the handshake is refused before any byte of a
// message is sent. Its error states the remedy, no state of it remains, and other peers are still
// served.
func TestTLSRefused(t *testing.T) {
	t.Parallel()
	server, client, unknown := newNamedCert("server"), newNamedCert("client"), newNamedCert("stranger")
	good := mutual(server, server, client)
	ours := func(own tls.Certificate) *tls.Config { return mutual(own, server, client, own) }
	theirs := func(name string, change func(c *x509.Certificate)) (*tls.Config, *tls.Config) {
		c := newNamedCert(name, change)
		return mutual(c, c, client), mutual(client, c, client)
	}
	type row struct {
		server, client *tls.Config
		want           string
	}
	rows := map[string]row{
		"unknown authority of the server": {good, mutual(client, client), "add it to RootCAs in the local tls.Config (LoadTLS: the ca file) (CN=server)"},
		"no certificate":                  {good, &tls.Config{RootCAs: ours(client).RootCAs}, "requires a certificate; set Certificates in the local tls.Config (LoadTLS: the cert and key files)"},
		"plain client":                    {good, nil, "TLS is required here: set Config.TLS, or udp.Options.TLS "},
		"plain server":                    {nil, ours(client), "this side does not: set Config.TLS, or udp.Options.TLS "},
	}
	expired := func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }
	elsewhere := func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 2)} }
	other := func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{"kv.example"} }
	for name, r := range map[string]struct {
		change func(c *x509.Certificate)
		want   string
	}{
		"expired server":         {expired, "has expired or is not yet valid (subject "},
		"server of another host": {elsewhere, "set ServerName"},
		"server of another name": {other, "set ServerName"},
	} {
		s, c := theirs("server", r.change)
		rows[name] = row{s, c, r.want}
	}
	late := newNamedCert("client", expired)
	rows["expired client"] = row{mutual(server, server, late), mutual(late, server, late), "as expired or not yet valid"}
	forged := ours(client)
	forged.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &unknown, nil }
	rows["unknown authority of the client"] = row{good, forged, "the local certificate"}
	panics := mutual(server, server, client)
	panics.VerifyConnection = func(tls.ConnectionState) error { panic("oh") }
	rows["a function that panics"] = row{panics, ours(client), "the peer rejected the local certificate"}
	eachSocket(t, func(t *testing.T, opts udp.Options) {
		t.Parallel()
		for name, row := range rows {
			t.Run(name, func(t *testing.T) {
				b := open(t, "udp://127.0.0.1:0", withTLS(opts, row.server), 1)
				a := open(t, "udp://", withTLS(opts, row.client), 1)
				for range 2 {
					err := requireRefused(t, a, b, row.want)
					require.NotErrorIs(t, err, na.ErrPermission, "an error has one code")
				}
				require.Zero(t, b.ctxs[0].Stats().Peers)
				require.Zero(t, b.ctxs[0].Stats().Reserved)
				if row.server == good {
					c := open(t, "udp://", withTLS(opts, ours(client)), 1)
					sendMessage(t, c.ctxs[0], b.cls.Addr(), b.ctxs[0], "served", b, c)
				}
			})
		}
	})
}

// requireRefused has a send something to b, which fails and did not run. It returns the error.
func requireRefused(t *testing.T, a, b *node, want string) error {
	t.Helper()
	var end *na.Result
	c := a.ctxs[0]
	require.NoError(t, c.SendUnexpected(c.NewOp(func(_ *na.Op, r na.Result) { end = &r }), b.cls.Addr(), 1, []byte("secret")))
	driveUntil(t, "refusal", func() bool { return end != nil }, a, b)
	require.ErrorContains(t, end.Err, want)
	require.ErrorIs(t, end.Err, na.ErrUnreachable)
	require.Equal(t, na.NotRun, end.Fate)
	return end.Err
}

// TestTLSMayListen checks that a listener needs a certificate, and TLS 1.3.
func TestTLSMayListen(t *testing.T) {
	for want, cfg := range map[string]*tls.Config{
		"udp: options: TLS has no certificate": {},
		"want a MaxVersion of TLS 1.3, or 0":   {MaxVersion: tls.VersionTLS12},
	} {
		_, err := na.Open("udp://127.0.0.1:0", na.Config{Plugins: []na.Plugin{udp.New(udp.Options{TLS: cfg})}})
		require.ErrorIs(t, err, na.ErrInvalid)
		require.ErrorContains(t, err, want)
	}
	b := open(t, "udp://0.0.0.0:0", udp.Options{TLS: mutualTLS()}, 0) // beyond loopback nothing else is needed
	require.NotContains(t, b.cls.Addr().Name(), "0.0.0.0")
}

// openRelayedPair opens a target, a path to it, and an origin, with TLS.
func openRelayedPair(t *testing.T, rules relay.Rules) (a, b *node, way *relay.Relay, to na.Addr) {
	t.Helper()
	opts := udp.Options{TLS: mutualTLS()}
	b = open(t, "udp://127.0.0.1:0", opts, 1)
	way, err := relay.New(netip.MustParseAddrPort(strings.TrimPrefix(b.cls.Addr().Name(), "udp://")), rules)
	require.NoError(t, err)
	t.Cleanup(way.Close)
	a = open(t, "udp://", opts, 1)
	return a, b, way, na.MakeAddr("udp://"+way.Addr().String(), 0)
}

// TestTLSBadPaths checks that sessions begin and continue where packets are lost, repeated, damaged
// and reordered, and no message is visible on the path.
func TestTLSBadPaths(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for name, rules := range map[string]relay.Rules{
		"lost": {Lose: 0.2}, "repeated": {Repeat: 0.5}, "damaged": {Damage: 0.2}, "overtaken": {Delay: 0.3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rules.Seed = seed
			a, b, way, to := openRelayedPair(t, rules)
			way.Watch(func(d []byte, _ bool) {
				if strings.Contains(string(d), "confidential") {
					t.Error("it is to be seen")
				}
			})
			for i := range 30 {
				sendMessage(t, a.ctxs[0], to, b.ctxs[0], fmt.Sprintf("confidential %d", i), a, b)
			}
		})
	}
}

// TestTLSReplay sends a recorded session again packet by packet from its own and from another
// address: it starts nothing, is delivered to no context, and disturbs no session.
func TestTLSReplay(t *testing.T) {
	t.Parallel()
	a, b, way, to := openRelayedPair(t, relay.Rules{})
	var mu sync.Mutex
	var tape [][]byte
	way.Watch(func(d []byte, fromTarget bool) {
		mu.Lock()
		defer mu.Unlock()
		if !fromTarget {
			tape = append(tape, append([]byte(nil), d...))
		}
	})
	for i := range 10 {
		sendMessage(t, a.ctxs[0], to, b.ctxs[0], fmt.Sprint(i), a, b)
	}
	peers, recorded := b.ctxs[0].Stats().Peers, 0
	again := func() {
		conn, err := net.Dial("udp4", way.Addr().String())
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		direct, err := net.Dial("udp4", strings.TrimPrefix(b.cls.Addr().Name(), "udp://"))
		require.NoError(t, err)
		defer func() { _ = direct.Close() }()
		mu.Lock()
		all := tape[:len(tape):len(tape)]
		mu.Unlock()
		recorded = len(all)
		for _, d := range all {
			_, _ = conn.Write(d)
			_, _ = direct.Write(d)
		}
	}
	got := 0
	c := b.ctxs[0]
	require.NoError(t, c.RecvUnexpected(c.NewOp(func(_ *na.Op, r na.Result) {
		if r.Err == nil {
			got++
			require.Equal(t, "new", string(r.Envelope.Data))
			r.Envelope.Free()
		}
	})))
	again()
	require.Greater(t, recorded, 10)
	sent := false
	o := a.ctxs[0]
	require.NoError(t, o.SendUnexpected(o.NewOp(func(_ *na.Op, r na.Result) { require.NoError(t, r.Err); sent = true }), to, 7, []byte("new")))
	driveUntil(t, "message", func() bool { return sent && got == 1 }, a, b)
	require.Equal(t, peers, b.ctxs[0].Stats().Peers)
	again() // after its end, too: the id is unknown then
}

// TestTLSAddressChanges changes the address of a peer in the middle of a transfer, again and again; the
// transfer continues.
func TestTLSAddressChanges(t *testing.T) {
	t.Parallel()
	a, b, way, to := openRelayedPair(t, relay.Rules{})
	sender := sendMessage(t, a.ctxs[0], to, b.ctxs[0], "hello", a, b)
	began, ok := b.ctxs[0].Identity(sender)
	require.True(t, ok)
	n := 8 << 20
	src, dst := make([]byte, n), make([]byte, n)
	for i := range src {
		src[i] = byte(i ^ i>>8)
	}
	there, err := b.cls.Register(na.ReadWrite, dst)
	require.NoError(t, err)
	here, err := a.cls.NewMem(src)
	require.NoError(t, err)
	c := a.ctxs[0]
	for round := range 3 {
		var end *na.Result
		if round%2 == 0 {
			require.NoError(t, c.Put(c.NewOp(func(_ *na.Op, r na.Result) { end = &r }), here, 0, to, there.Key(), 0, int64(n)))
		} else {
			require.NoError(t, c.Get(c.NewOp(func(_ *na.Op, r na.Result) { end = &r }), here, 0, to, there.Key(), 0, int64(n)))
		}
		moves := 0
		first, _, _ := way.Passed()
		driveUntil(t, "transfer", func() bool {
			if now, back, _ := way.Passed(); moves < 2 && now+back > first+int64(20*(moves+1)) {
				way.Move()
				moves++
			}
			return end != nil
		}, a, b)
		require.NoError(t, end.Err)
		require.Equal(t, src, dst)
		require.Positive(t, moves)
	}
	now, ok := b.ctxs[0].Identity(sender)
	require.True(t, ok)
	require.NotEqual(t, began.Remote, now.Remote, "where the peer is now")
	require.Zero(t, b.ctxs[0].Stats().PeersLost)
}

// TestTLSLongChain checks that a client whose certificates are too long gets an error with the
// reason and the remedy; the server logs and counts it.
func TestTLSLongChain(t *testing.T) {
	t.Parallel()
	cfg := mutualTLS()
	long := cfg.Clone()
	c := cfg.Certificates[0]
	for range 60 {
		c.Certificate = append(c.Certificate[:len(c.Certificate):len(c.Certificate)], c.Certificate[0])
	}
	long.Certificates = []tls.Certificate{c}
	eachSocket(t, func(t *testing.T, opts udp.Options) {
		var log bytes.Buffer
		cls, err := na.Open("udp://127.0.0.1:0", na.Config{
			Plugins: []na.Plugin{udp.New(withTLS(opts, cfg))}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		require.NoError(t, err)
		b := openContexts(t, cls, 1)
		a := open(t, "udp://", withTLS(opts, long), 1)
		requireRefused(t, a, b, "the peer rejected the local certificate chain as too long; use fewer intermediate certificates")
		driveUntil(t, "it is counted", func() bool { return b.ctxs[0].Stats().HandshakesFailed == 1 }, a, b)
		require.Equal(t, 1, strings.Count(log.String(), "the certificate chain of the peer is too long"), log.String())
		good := open(t, "udp://", withTLS(opts, cfg), 1)
		sendMessage(t, good.ctxs[0], b.cls.Addr(), b.ctxs[0], "served", good, b)
	})
}

// TestTLSAcceptReason checks that the log line of a server that rejects a client's certificate names
// the field of a tls.Config with which a server lists authorities.
func TestTLSAcceptReason(t *testing.T) {
	t.Parallel()
	server, client, unknown := newNamedCert("server"), newNamedCert("client"), newNamedCert("stranger")
	forged := mutual(client, server, client)
	forged.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &unknown, nil }
	eachSocket(t, func(t *testing.T, opts udp.Options) {
		var log bytes.Buffer
		cls, err := na.Open("udp://127.0.0.1:0", na.Config{
			Plugins: []na.Plugin{udp.New(withTLS(opts, mutual(server, server, client)))}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		require.NoError(t, err)
		b := openContexts(t, cls, 1)
		requireRefused(t, open(t, "udp://", withTLS(opts, forged), 1), b, "the local certificate")
		driveUntil(t, "it is counted", func() bool { return b.ctxs[0].Stats().HandshakesFailed > 0 }, b)
		require.Contains(t, log.String(), "add it to ClientCAs in the local tls.Config (LoadTLS: the ca file) (CN=stranger)")
	})
}
