package tcp_test

import (
	"crypto/x509"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// lookupAddr returns the address that text leads to, or the error.
func lookupAddr(t *testing.T, n *node, text string) (na.Addr, error) {
	t.Helper()
	o, end := newOp(n.ctx())
	require.NoError(t, n.ctx().Lookup(o, text))
	driveUntil(t, "lookup", end.done, n)
	return end.Addr, end.Err
}

// sendGreeting sends a message to an address, and returns its result and, if it arrived, the name under
// which the target has the origin.
func sendGreeting(t *testing.T, a, b *node, to na.Addr) (who na.Identity, err error) {
	t.Helper()
	recv, got := newOp(b.ctx())
	require.NoError(t, b.ctx().RecvUnexpected(recv))
	o, end := newOp(a.ctx())
	if err := a.ctx().SendUnexpected(o, to, 1, []byte("hello")); err != nil {
		recv.Cancel()
		driveUntil(t, "canceled", got.done, b)
		return who, err
	}
	driveUntil(t, "end", func() bool { return end.done() && (end.Err != nil || got.done()) }, a, b)
	if end.Err != nil {
		require.Equal(t, na.NotRun, end.Fate)
		recv.Cancel()
		driveUntil(t, "canceled", got.done, b)
		return who, end.Err
	}
	who = got.Envelope.Identity()
	got.Envelope.Free()
	return who, nil
}

// TestTLSNames checks that a certificate is verified against the host that the address was looked
// up by.
func TestTLSNames(t *testing.T) {
	ca := newAuthority(t, "cluster")
	named := func(names ...string) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, names }
	}
	names := hostsResolver{"kv.test": {"127.0.0.1"}, "kv.test.": {"127.0.0.1"}, "kv-0.pods.test": {"127.0.0.1"}, "evil.test": {"127.0.0.1"}}
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		t.Parallel()
		opts.Resolver = names
		server := func(t *testing.T, change func(*x509.Certificate)) (b *node, port string) {
			b = open(t, "tcp://127.0.0.1:0", withTLS(opts, ca.mutual(ca.issue("server", change))), na.Config{}, 1)
			_, port, _ = strings.Cut(b.cls.Addr().Name(), "127.0.0.1")
			return b, port
		}
		client := func(t *testing.T) *node {
			return open(t, "tcp://", withTLS(opts, ca.mutual(ca.issue("client", nil))), na.Config{}, 1)
		}
		t.Run("DNS", func(t *testing.T) {
			for text, want := range map[string]string{
				"tcp://kv.test:PORT":           "",
				"tcp://kv.test.:PORT":          "",
				"tcp://kv-0.pods.test:PORT":    "",
				"tcp://kv.test@127.0.0.1:PORT": "", // as it prints
				"tcp://evil.test:PORT":         "valid for kv.test, *.pods.test, not evil.test",
				"tcp://127.0.0.1:PORT":         "valid for kv.test, *.pods.test, not 127.0.0.1",
			} {
				b, port := server(t, named("kv.test", "*.pods.test"))
				a := client(t)
				to, err := lookupAddr(t, a, strings.Replace(text, ":PORT", port, 1))
				require.NoError(t, err)
				who, err := sendGreeting(t, a, b, to)
				if want == "" {
					require.NoError(t, err, text)
					require.Equal(t, "client", who.Name)
					again, err := na.ParseAddr(to.String())
					require.NoError(t, err)
					again, err = lookupAddr(t, a, again.String())
					require.NoError(t, err)
					require.Equal(t, to, again, "an address that was printed leads to the same")
				} else {
					requireCode(t, na.ErrUnreachable, err)
					require.ErrorContains(t, err, want)
					require.Zero(t, b.ctx().Stats().Peers, "no peer was admitted")
				}
			}
		})
		t.Run("IP", func(t *testing.T) {
			b, port := server(t, nil)
			a := client(t)
			to, err := lookupAddr(t, a, "tcp://127.0.0.1"+port)
			require.NoError(t, err)
			_, err = sendGreeting(t, a, b, to)
			require.NoError(t, err)
		})
		t.Run("Others", func(t *testing.T) { // all names that are there are listed, of any kind
			for text, want := range map[string]string{"tcp://evil.test": "evil.test", "tcp://127.0.0.1": "127.0.0.1"} {
				b, port := server(t, func(c *x509.Certificate) {
					c.DNSNames, c.IPAddresses = []string{"kv.test"}, []net.IP{net.IPv4(10, 0, 0, 7)}
					c.URIs = []*url.URL{{Scheme: "spiffe", Host: "test", Path: "/kv"}}
				})
				a := client(t)
				to, err := lookupAddr(t, a, text+port)
				require.NoError(t, err)
				_, err = sendGreeting(t, a, b, to)
				requireCode(t, na.ErrUnreachable, err)
				require.ErrorContains(t, err, "valid for kv.test, 10.0.0.7, spiffe://test/kv, not "+want)
			}
		})
		t.Run("SecondName", func(t *testing.T) {
			b, port := server(t, named("kv.test", "kv-0.pods.test"))
			a := client(t)
			first, err := lookupAddr(t, a, "tcp://kv.test"+port)
			require.NoError(t, err)
			early, err := lookupAddr(t, a, "tcp://evil.test"+port) // no session has been verified
			require.NoError(t, err)
			second, err := lookupAddr(t, a, "tcp://kv-0.pods.test"+port)
			require.NoError(t, err)
			_, err = sendGreeting(t, a, b, first)
			require.NoError(t, err)
			_, err = sendGreeting(t, a, b, second)
			require.NoError(t, err)
			require.Equal(t, 1, b.ctx().Stats().Peers, "one session for both names")

			_, err = sendGreeting(t, a, b, early)
			requireCode(t, na.ErrPermission, err)
			require.ErrorContains(t, err, "valid for kv.test, kv-0.pods.test, not evil.test")
			_, err = lookupAddr(t, a, "tcp://evil.test"+port)
			requireCode(t, na.ErrPermission, err)
			require.ErrorContains(t, err, "not evil.test")
			_, err = sendGreeting(t, a, b, first.WithHost(""))
			requireCode(t, na.ErrPermission, err)
			_, err = sendGreeting(t, a, b, first)
			require.NoError(t, err, "the session is unharmed")
		})
		t.Run("WhileDialling", func(t *testing.T) {
			b, port := server(t, named("kv.test"))
			a := client(t)
			good, err := lookupAddr(t, a, "tcp://kv.test"+port)
			require.NoError(t, err)
			bad, err := lookupAddr(t, a, "tcp://evil.test"+port)
			require.NoError(t, err)
			one, first := newOp(a.ctx())
			require.NoError(t, a.ctx().SendUnexpected(one, good, 1, []byte("good")))
			two, second := newOp(a.ctx())
			require.NoError(t, a.ctx().SendUnexpected(two, bad, 1, []byte("bad")))
			driveUntil(t, "ends", func() bool { return first.done() && second.done() }, a, b)
			require.ErrorContains(t, second.Err, "not evil.test")
			require.Equal(t, na.NotRun, second.Fate)
			_, err = sendGreeting(t, a, b, good)
			require.NoError(t, err, "the right name is reached at the next attempt")
		})
		t.Run("ServerName", func(t *testing.T) {
			b, port := server(t, named("fixed.test"))
			cfg := ca.mutual(ca.issue("client", nil))
			cfg.ServerName = "fixed.test"
			a := open(t, "tcp://", withTLS(opts, cfg), na.Config{}, 1)
			for _, text := range []string{"tcp://127.0.0.1", "tcp://kv.test"} {
				to, err := lookupAddr(t, a, text+port)
				require.NoError(t, err)
				require.Equal(t, b.cls.Addr().String(), to.String(), "the name is not checked")
				_, err = sendGreeting(t, a, b, to)
				require.NoError(t, err)
			}
		})
	})
}

// TestIdentityNames checks the names in a certificate.
func TestIdentityNames(t *testing.T) {
	ca := newAuthority(t, "cluster")
	spiffe, err := url.Parse("spiffe://cluster.test/ns/shop/sa/cart")
	require.NoError(t, err)
	for _, row := range []struct {
		want   string
		change func(*x509.Certificate)
	}{
		{"spiffe://cluster.test/ns/shop/sa/cart", func(c *x509.Certificate) { c.URIs, c.DNSNames = []*url.URL{spiffe}, []string{"cart.test"} }},
		{"cart.test", func(c *x509.Certificate) { c.DNSNames = []string{"cart.test", "other.test"} }},
		{"common", nil},
	} {
		b := open(t, "tcp://127.0.0.1:0", withTLS(tcp.Options{}, ca.mutual(ca.issue("server", nil))), na.Config{}, 1)
		a := open(t, "tcp://", withTLS(tcp.Options{}, ca.mutual(ca.issue("common", row.change))), na.Config{}, 1)
		who, err := sendGreeting(t, a, b, b.cls.Addr())
		require.NoError(t, err)
		require.Equal(t, row.want, who.Name)
		require.Equal(t, []netip.Addr{netip.MustParseAddr("127.0.0.1")}, who.IPs())
		var wantURIs []string
		if strings.HasPrefix(row.want, "spiffe") {
			wantURIs = []string{row.want}
		}
		require.Equal(t, wantURIs, who.URIs())
		require.Equal(t, row.change != nil, len(who.DNSNames()) > 0)
	}
	require.Nil(t, na.Identity{}.DNSNames())
}
