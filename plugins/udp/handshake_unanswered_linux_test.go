package udp

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp/internal/arq"
)

// A meteredSocket is a socket that counts the bytes that it sends, and loses those that it does not pass.
type meteredSocket struct {
	socket
	bytes atomic.Int64
	pass  func(b []byte) bool
}

func (m *meteredSocket) send(o *outbox) {
	passed := outbox{}
	for _, d := range o.list {
		m.bytes.Add(int64(len(d.b)))
		if m.pass(d.b) {
			passed.list = append(passed.list, d)
		}
	}
	m.socket.send(&passed)
}

// TestUnansweredHandshake checks that a peer that has shown a token, and receives nothing of the
// TLS handshake, is not sent all of it again and again, but three times the bytes that it has sent,
// and one packet each time that the timer expires. The same holds when it sends its first packets
// again, and when nothing of it arrives any more: then that is less than 20 KB in the 5 s that a
// handshake may take.
func TestUnansweredHandshake(t *testing.T) {
	for _, c := range []struct {
		name   string
		flight int64 // packets of the peer other than those that request a token; 0: all
		most   int64 // bytes that it is sent
	}{{"it goes on", 0, (3*12 + 8) * arq.BaseSize}, {"it is silent", 2, 20_000}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			testUnanswered(t, c.flight, c.most)
		})
	}
}

func testUnanswered(t *testing.T, flight int64, most int64) {
	c := testcert.NewWith(func(c *x509.Certificate) {
		for i := range 1500 {
			c.DNSNames = append(c.DNSNames, fmt.Sprintf("a-rather-long-name-%d.example", i))
		}
	})
	var meters [2]*meteredSocket
	var sent atomic.Int64
	isRetry := func(b []byte) bool { return b[0] == 0xf0 }
	open := func(i int, addr string, cfg *tls.Config, pass func(b []byte) bool) (*na.Class, *na.Context) {
		cls, err := na.Open(addr, na.Config{ConnectTimeout: 5 * time.Second, Plugins: []na.Plugin{plugin{opts: Options{TLS: cfg}, tune: func(d *domain) {
			d.open = func(where netip.AddrPort, shared *sharedSocket) (socket, error) {
				s, err := openPolled(where, shared)
				meters[i] = &meteredSocket{socket: s, pass: pass}
				return meters[i], err
			}
		}}}})
		require.NoError(t, err)
		ctx, err := cls.NewContext()
		require.NoError(t, err)
		return cls, ctx
	}
	target, at := open(0, "udp://127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{c}}, isRetry)
	source, from := open(1, "udp://", &tls.Config{RootCAs: testcert.Pool(c)}, func(b []byte) bool {
		if asks := len(b) == tokenRequestSize; asks || flight == 0 {
			return true
		}
		return sent.Add(1) <= flight
	})
	drive := func(done func() bool) {
		for end := time.Now().Add(20 * time.Second); !done(); {
			require.Less(t, time.Now(), end)
			for _, ctx := range []*na.Context{at, from} {
				_ = ctx.Progress(time.Millisecond)
				ctx.Trigger(0)
			}
		}
	}
	var end *na.Result
	require.NoError(t, from.SendUnexpected(from.NewOp(func(_ *na.Op, r na.Result) { end = &r }), target.Addr(), 1, []byte("x")))
	drive(func() bool { return end != nil })
	require.ErrorIs(t, end.Err, na.ErrUnreachable)
	theirs, ours := meters[0].bytes.Load(), meters[1].bytes.Load()
	t.Logf("%d bytes from the target, %d to it", theirs, ours)
	require.Greater(t, theirs, int64(4*arq.BaseSize))
	require.LessOrEqual(t, theirs, 3*ours+8*arq.BaseSize, "bytes from the target")
	require.LessOrEqual(t, theirs, most, "bytes from the target")
	require.LessOrEqual(t, ours, int64(12*arq.BaseSize), "bytes to it: a ClientHello of two packets, and one each time that the timer expires")
	for _, ctx := range []*na.Context{at, from} {
		ctx.Close()
	}
	drive(func() bool { return at.Closed() && from.Closed() })
	require.NoError(t, source.Close())
	require.NoError(t, target.Close())
}
