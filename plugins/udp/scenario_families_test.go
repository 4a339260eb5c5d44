package udp_test

import (
	"context"
	"crypto/x509"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/happyeyeballs"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp"
)

// familiesResolver is a resolver with the same addresses for every host.
type familiesResolver []string

func (f familiesResolver) LookupNetIP(context.Context, string, string) (ips []netip.Addr, err error) {
	for _, ip := range f {
		ips = append(ips, netip.MustParseAddr(ip))
	}
	return ips, nil
}

// eachSecurity runs a test over every kind of socket, without TLS and with certificates for the host "both".
func eachSecurity(t *testing.T, test func(t *testing.T, opts udp.Options)) {
	six, err := net.ListenPacket("udp6", "[::1]:0")
	if err != nil {
		t.Skip("a machine may have no IPv6")
	}
	_ = six.Close()
	eachSocket(t, func(t *testing.T, opts udp.Options) {
		t.Run("plain", func(t *testing.T) { test(t, opts) })
		t.Run("TLS", func(t *testing.T) {
			c := newNamedCert("node", func(c *x509.Certificate) { c.DNSNames = []string{"both"} })
			test(t, withTLS(opts, mutual(c, c)))
		})
	})
}

// lookup resolves the text of an address.
func lookup(t *testing.T, n *node, text string) (addr na.Addr) {
	t.Helper()
	found := false
	c := n.ctxs[0]
	require.NoError(t, c.Lookup(c.NewOp(func(_ *na.Op, r na.Result) {
		require.NoError(t, r.Err)
		addr, found = r.Addr, true
	}), text))
	driveUntil(t, "lookup", func() bool { return found }, n)
	return addr
}

// TestFamilies checks that a host with addresses of both families is reached by the one that
// answers, whichever is tried first, also where the other one sends nothing.
func TestFamilies(t *testing.T) {
	t.Parallel()
	eachSecurity(t, func(t *testing.T, opts udp.Options) {
		for name, c := range map[string]struct {
			dns    familiesResolver
			listen string
			silent string
		}{
			"IPv6 is refused":  {familiesResolver{"::1", "127.0.0.1"}, "127.0.0.1", ""},
			"IPv4 is refused":  {familiesResolver{"127.0.0.1", "::1"}, "[::1]", ""},
			"IPv6 is silent":   {familiesResolver{"::1", "127.0.0.1"}, "127.0.0.1", "[::1]"},
			"IPv4 is silent":   {familiesResolver{"127.0.0.1", "::1"}, "[::1]", "127.0.0.1"},
			"the third serves": {familiesResolver{"::1", "127.0.0.2", "127.0.0.1"}, "127.0.0.1", ""},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				opts := opts
				opts.Resolver = c.dns
				to := open(t, "udp://"+c.listen+":0", opts, 1)
				self := to.cls.Addr().Name()
				port := self[strings.LastIndex(self, ":"):]
				if c.silent != "" {
					s, err := net.ListenPacket("udp", c.silent+port)
					require.NoError(t, err)
					defer s.Close()
				}
				from := open(t, "udp://", opts, 1)
				addr := lookup(t, from, "udp://both"+port)
				sender := sendMessage(t, from.ctxs[0], addr, to.ctxs[0], "hello", from, to)
				back := sendMessage(t, to.ctxs[0], sender, from.ctxs[0], "answer", from, to)
				require.Equal(t, self, back.Named().String())
				sendMessage(t, from.ctxs[0], addr, to.ctxs[0], "again", from, to)
				require.Equal(t, 1, from.ctxs[0].Stats().Peers)
				require.Equal(t, 1, to.ctxs[0].Stats().Peers)
			})
		}
	})
}

// TestFamiliesBoth checks that a server that is so late that it has been dialed at both of its
// addresses has one session with the client in the end, and the client has lost none.
func TestFamiliesBoth(t *testing.T) {
	t.Parallel()
	eachSecurity(t, func(t *testing.T, opts udp.Options) {
		opts.Resolver, opts.Trusted = familiesResolver{"::1", "127.0.0.1"}, true
		late := opts
		late.Unassisted = !opts.Portable // a portable socket is read in any case
		to := open(t, "udp://[::]:0", late, 1)
		self := to.cls.Addr().Name()
		from := open(t, "udp://", opts, 1)
		addr := lookup(t, from, "udp://both"+self[strings.LastIndex(self, ":"):])
		sent := false
		c := from.ctxs[0]
		require.NoError(t, c.SendUnexpected(c.NewOp(func(_ *na.Op, r na.Result) { sent = r.Err == nil }), addr, 1, []byte("hello")))
		for end := time.Now().Add(happyeyeballs.Delay * 5 / 4); time.Now().Before(end); { // the second attempt begins
			_ = c.Progress(time.Millisecond)
		}
		driveUntil(t, "hello", func() bool { return sent }, from, to)
		sendMessage(t, from.ctxs[0], addr, to.ctxs[0], "hello", from, to)
		driveUntil(t, "one session", func() bool { return to.ctxs[0].Stats().Peers == 1 }, from, to)
		require.Equal(t, 1, c.Stats().Peers)
		require.Zero(t, from.ctxs[0].Stats().PeersLost)
	})
}

// TestFamiliesDead checks that the error of a host none of whose addresses can be reached names
// each with its reason.
func TestFamiliesDead(t *testing.T) {
	t.Parallel()
	eachSecurity(t, func(t *testing.T, opts udp.Options) {
		closed, err := net.ListenPacket("udp", "127.0.0.1:0")
		require.NoError(t, err)
		port := closed.LocalAddr().String()[len("127.0.0.1"):]
		require.NoError(t, closed.Close())
		opts.Resolver = familiesResolver{"::1", "127.0.0.1", "203.0.113.9"}
		cls, err := na.Open("udp://", na.Config{Plugins: []na.Plugin{udp.New(opts)}, ConnectTimeout: 400 * time.Millisecond})
		require.NoError(t, err)
		n := openContexts(t, cls, 1)
		addr := lookup(t, n, "udp://both"+port)
		c, end := n.ctxs[0], error(nil)
		require.NoError(t, c.SendUnexpected(c.NewOp(func(_ *na.Op, r na.Result) { end = r.Err }), addr, 1, nil))
		driveUntil(t, "the end", func() bool { return end != nil }, n)
		require.ErrorIs(t, end, na.ErrUnreachable)
		for _, host := range []string{"[::1]", "127.0.0.1", "203.0.113.9"} {
			require.ErrorContains(t, end, "udp://"+host+port+": ")
		}
	})
}
