package tcp_test

import (
	"crypto/x509"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// eachSecurity runs fn over both carriers, without TLS and with certificates for the host "both".
func eachSecurity(t *testing.T, fn func(t *testing.T, opts tcp.Options)) {
	l, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		t.Skip("a machine may have no IPv6")
	}
	_ = l.Close()
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		t.Run("plain", func(t *testing.T) { fn(t, opts) })
		t.Run("TLS", func(t *testing.T) {
			ca := newAuthority(t, "cluster")
			opts.TLS = ca.mutual(ca.issue("node", func(c *x509.Certificate) {
				c.DNSNames, c.IPAddresses = []string{"both"}, append(c.IPAddresses, net.IPv6loopback)
			}))
			fn(t, opts)
		})
	})
}

// silentAt listens at an address and sends nothing. It returns a function that waits until a
// connection has arrived and has been closed.
func silentAt(t *testing.T, addr string) (closed func()) {
	l, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return func() {
		require.NoError(t, l.(*net.TCPListener).SetDeadline(time.Now().Add(patience)))
		c, err := l.Accept()
		require.NoError(t, err)
		defer c.Close()
		require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
		for b := make([]byte, 4096); err == nil; {
			_, err = c.Read(b)
		}
		timeout, ok := err.(net.Error)
		require.False(t, ok && timeout.Timeout(), "the connection is not closed")
	}
}

// TestFamilies checks that a host with addresses of both families is reached by the one that
// answers, whichever is tried first, also where the other one accepts connections and sends
// nothing. Later messages, and a second connection for bulk data, use that one.
func TestFamilies(t *testing.T) {
	t.Parallel()
	eachSecurity(t, func(t *testing.T, opts tcp.Options) {
		for name, c := range map[string]struct {
			dns    []string
			listen string
			silent string
		}{
			"IPv6 is refused":  {[]string{"::1", "127.0.0.1"}, "127.0.0.1", ""},
			"IPv4 is refused":  {[]string{"127.0.0.1", "::1"}, "[::1]", ""},
			"IPv6 is silent":   {[]string{"::1", "127.0.0.1"}, "127.0.0.1", "[::1]"},
			"the third serves": {[]string{"::1", "127.0.0.2", "127.0.0.1"}, "127.0.0.1", ""},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				opts := opts
				opts.Resolver = hostsResolver{"both": c.dns}
				to := open(t, "tcp://"+c.listen+":0", opts, na.Config{}, 1)
				_, port, err := net.SplitHostPort(hostPort(to))
				require.NoError(t, err)
				var closed func()
				if c.silent != "" {
					closed = silentAt(t, c.silent+":"+port)
				}
				from := open(t, "tcp://", opts, na.Config{}, 1)
				addr := lookup(t, from, "tcp://both:"+port)
				sendUnexpected(t, from.ctx(), addr, 1, "hello", from, to)
				text, sender, _ := recvUnexpected(t, to.ctx(), from, to)
				require.Equal(t, "hello", text)
				sendUnexpected(t, to.ctx(), sender, 1, "answer", from, to)
				_, back, _ := recvUnexpected(t, from.ctx(), from, to)
				require.Equal(t, "tcp://"+c.listen+":"+port, back.Named().String())
				sendUnexpected(t, from.ctx(), back.Named(), 1, "the same session", from, to)
				again := lookup(t, from, addr.String())
				require.Equal(t, addr, again, "the text of an address has all that it stands for")
				sendUnexpected(t, from.ctx(), again, 1, "and again", from, to)
				require.Equal(t, 1, from.ctx().Stats().Peers)
				if closed != nil {
					closed()
				}
			})
		}
	})
}

// TestFamiliesDead checks that the error of a host none of whose addresses can be reached names
// each with its reason.
func TestFamiliesDead(t *testing.T) {
	t.Parallel()
	eachSecurity(t, func(t *testing.T, opts tcp.Options) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		_, port, err := net.SplitHostPort(l.Addr().String())
		require.NoError(t, err)
		require.NoError(t, l.Close())
		opts.Resolver = hostsResolver{"both": {"::1", "127.0.0.1"}}
		n := open(t, "tcp://", opts, na.Config{}, 1)
		o, end := newOp(n.ctx())
		require.NoError(t, n.ctx().SendUnexpected(o, lookup(t, n, "tcp://both:"+port), 1, nil))
		driveUntil(t, "the end", end.done, n)
		requireCode(t, na.ErrUnreachable, end.Err)
		require.Equal(t, na.NotRun, end.Fate)
		require.ErrorContains(t, end.Err, "tcp://[::1]:"+port+": connect")
		require.ErrorContains(t, end.Err, "; tcp://127.0.0.1:"+port+": connect")
	})
}

// TestFamiliesSelf checks that the name of a host that has an address of this class leads to the
// class itself; one among many does not.
func TestFamiliesSelf(t *testing.T) {
	opts := tcp.Options{Resolver: hostsResolver{
		"me": {"::1", "127.0.0.1", "127.0.0.2"}, "us": {"127.0.0.2", "127.0.0.1", "127.0.0.3"},
	}}
	n := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
	_, port, err := net.SplitHostPort(hostPort(n))
	require.NoError(t, err)
	require.Equal(t, n.cls.Addr(), lookup(t, n, "tcp://me:"+port))
	require.Equal(t, "tcp://127.0.0.2:"+port+"|127.0.0.3:"+port, lookup(t, n, "tcp://us:"+port).String())
}
