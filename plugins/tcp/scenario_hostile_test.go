package tcp_test

import (
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// helloFrame returns the bytes of a HELLO after change has modified the greeting.
func helloFrame(change func(g *frame.Greeting)) []byte {
	g := greeting()
	change(&g)
	h := frame.Header{Kind: frame.Hello, Tag: frame.Magic}
	return h.Append(nil, g.Append(nil))
}

// TestBadHello checks that a peer with an invalid first message gets the reason if it uses the
// protocol at all, and the connection ends. Others are served.
func TestBadHello(t *testing.T) {
	plain := func(*frame.Greeting) {}
	whole := func(b []byte) []byte { return b }
	rows := map[string]struct {
		send []byte
		want na.Code
		text string
	}{
		"other protocol": {[]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n........"), na.ErrProtocol, "KIND"},
		"zeroes":         {make([]byte, 64), na.ErrProtocol, "KIND0"},
		"a TLS client":   {clientHello(t, &tls.Config{ServerName: "x"}), na.ErrProtocol, "the peer uses TLS, and this side does not"},
		"another kind": {func() []byte {
			h := frame.Header{Kind: frame.Get}
			return h.AppendFront(nil, 0)
		}(), na.ErrProtocol, "begins with GET"},
		"bulk": {func() []byte {
			h := frame.Header{Kind: frame.Data}
			return append(h.AppendFront(nil, 100), make([]byte, 100)...)
		}(), na.ErrProtocol, "begins with DATA"},
		"no magic": {func() []byte {
			g := greeting()
			h := frame.Header{Kind: frame.Hello}
			return h.Append(nil, g.Append(nil))
		}(), na.ErrProtocol, "want HELLO"},
		"version": {helloFrame(func(g *frame.Greeting) {
			g.Versions = frame.Range{Oldest: frame.Version + 1, Newest: frame.Version + 1}
		}), na.ErrVersion, fmt.Sprintf("the listening side %d; upgrade the listening side", frame.Version)},
		"no room":    {helloFrame(func(g *frame.Greeting) { g.Envelopes = 0 }), na.ErrProtocol, "envelopes"},
		"context":    {helloFrame(func(g *frame.Greeting) { g.Target = 300 }), na.ErrNoEntry, "no such context: 300"},
		"damaged":    {func() []byte { b := helloFrame(plain); b[50] ^= 1; return b }(), na.ErrChecksum, "checksum"},
		"no payload": {func() []byte { h := frame.Header{Kind: frame.Hello, Tag: frame.Magic}; return h.Append(nil, nil) }(), na.ErrProtocol, "missing required label"},
		"long": {func() []byte {
			h := frame.Header{Kind: frame.Hello, Tag: frame.Magic}
			return h.Append(nil, make([]byte, 5000))
		}(), na.ErrProtocol, "limit is 4096"},
		"huge": {func() []byte {
			b := whole(helloFrame(plain))
			binary.LittleEndian.PutUint32(b, 1<<31)
			return b
		}(), na.ErrProtocol, "length 2147483648"},
	}
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		n := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
		for name, row := range rows {
			t.Run(name, func(t *testing.T) {
				r := rawDial(t, n)
				r.write(row.send)
				got, text := r.readEnd()
				require.Equal(t, row.want, got)
				require.Contains(t, text, row.text)
			})
		}
		good := rawJoin(t, n, greeting())
		good.send(frame.Header{Kind: frame.Ping}, nil)
		good.readKind(frame.Pong)
		require.Equal(t, 1, n.ctx().Stats().Peers)
	})
}

// TestSlowHello checks that a HELLO may arrive byte by byte.
func TestSlowHello(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		n := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
		r := rawDial(t, n)
		hello := helloFrame(func(*frame.Greeting) {})
		ping := frame.Header{Kind: frame.Ping, Credit: 32}
		all := ping.AppendFront(hello, 0) // bytes right behind the HELLO are not lost
		for _, b := range all[:100] {
			r.write([]byte{b})
		}
		r.write(all[100:])
		r.readHello()
		r.readKind(frame.Pong)
	})
}

// TestTLSClientInSegments checks that a TLS client gets an error that there is no TLS here, however
// its first bytes are cut into segments; one that ends before that ends nothing else.
func TestTLSClientInSegments(t *testing.T) {
	hello := clientHello(t, &tls.Config{ServerName: "x"})
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		n := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
		for cut := 1; cut <= 8; cut++ {
			short := rawDial(t, n)
			short.write(hello[:cut])
			require.NoError(t, short.tcp.CloseWrite())
			short.readEnd()

			whole := rawDial(t, n)
			for _, b := range hello[:cut] { // as many segments, unless the system joins them
				whole.write([]byte{b})
			}
			whole.write(hello[cut:])
			got, text := whole.readEnd()
			require.Equal(t, na.ErrProtocol, got, "cut at %d", cut)
			require.Contains(t, text, "the peer uses TLS, and this side does not")
		}
		rawJoin(t, n, greeting()).ping()
	})
}

// TestBadSession checks that a peer that violates the protocol inside a session gets the reason and
// is cut.
func TestBadSession(t *testing.T) {
	rows := map[string]struct {
		send func(r *rawPeer)
		text string
	}{
		"garbage":                    {func(r *rawPeer) { r.write([]byte("................................................................")) }, "unknown critical kind"},
		"second HELLO":               {func(r *rawPeer) { r.hello(r.mine) }, "HELLO frame"},
		"no envelope":                {func(r *rawPeer) { exceedCredit(r) }, "exceeds the guaranteed"},
		"credit out of bounds (F81)": {func(r *rawPeer) { r.limit += 5000; r.send(frame.Header{Kind: frame.Ping}, nil) }, "credit 5032, previously 32"},
		"credit at its most (F81)": {func(r *rawPeer) {
			r.limit = 4096
			r.send(frame.Header{Kind: frame.Ping}, nil)
			r.readKind(frame.Pong)
			r.limit++
			r.send(frame.Header{Kind: frame.Ping}, nil)
		}, "credit 4097, previously 4096"},
		"credit wraps (F81)": {func(r *rawPeer) { r.limit = 1 << 31; r.send(frame.Header{Kind: frame.Ping}, nil) }, "credit 2147483648, previously 32"},
		"unknown flags (F82)": {func(r *rawPeer) {
			r.send(frame.Header{Kind: frame.Ping, Flags: 0xf0}, nil)
		}, "unknown flags"},
		"too long": {func(r *rawPeer) { r.send(frame.Header{Kind: frame.Unexpected}, make([]byte, 5000)) }, "5000 bytes"},
		"data for nobody": {func(r *rawPeer) {
			r.sendFront(frame.Header{Kind: frame.Data, Flags: frame.FlagAnswer, Tag: 1 << 63, Op: 1}, 100)
			r.write(make([]byte, 100))
			r.hello(r.mine)
		}, "HELLO frame"},
	}
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		n := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
		settled := rawJoin(t, n, greeting())
		to := settled.message(n)
		for name, row := range rows {
			t.Run(name, func(t *testing.T) {
				before := n.ctx().Stats()
				r := rawJoin(t, n, greeting())
				row.send(r)
				got, text := r.readEnd()
				require.Equal(t, na.ErrProtocol, got)
				require.Contains(t, text, row.text)
				require.Equal(t, before.Violations+1, n.ctx().Stats().Violations)
				o, end := newOp(n.ctx())
				require.NoError(t, n.ctx().SendUnexpected(o, to, 1, []byte(name)))
				requireSuccess(t, "send to another session", end, n)
				_, payload := settled.readKind(frame.Unexpected)
				require.Equal(t, name, string(payload))
				settled.limit++
				settled.send(frame.Header{Kind: frame.Ping}, nil)
				settled.readKind(frame.Pong)
			})
		}
	})
}

// exceedCredit sends more unexpected messages than there are envelopes for.
func exceedCredit(r *rawPeer) {
	for range r.peer.Envelopes + na.ExpeditedEnvelopes + 1 {
		r.send(frame.Header{Kind: frame.Unexpected}, []byte("x"))
	}
}

// TestHalfOpen checks that connections that send nothing are limited in number and in time, and
// other peers are served.
func TestHalfOpen(t *testing.T) {
	t.Parallel()
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		t.Parallel()
		const limit = 8
		opts.MaxHalfOpen = limit
		for _, row := range []struct {
			name    string
			timeout time.Duration
			more    int // connections beyond the limit
		}{{"number", time.Hour, 3 * limit}, {"time", time.Second, 0}} {
			t.Run(row.name, func(t *testing.T) {
				opts.HandshakeTimeout = row.timeout
				n := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
				settled := rawJoin(t, n, greeting())
				begin := time.Now()
				idle := make([]*rawPeer, limit)
				for i := range idle {
					idle[i] = rawDial(t, n)
					idle[i].write([]byte{0}) // something, but no HELLO
				}
				cut := idle
				for range row.more { // the oldest is closed for each of them
					cut = append(cut, rawDial(t, n))
				}
				cut = cut[:max(row.more, limit)]
				for _, r := range cut {
					require.NoError(t, r.nc.SetReadDeadline(time.Now().Add(patience)))
					_, err := io.Copy(io.Discard, r.nc) // closed or reset
					require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
					if row.more == 0 {
						require.GreaterOrEqual(t, time.Since(begin), row.timeout*95/100)
					}
				}
				settled.send(frame.Header{Kind: frame.Ping}, nil)
				settled.readKind(frame.Pong)
				if row.more == 0 {
					rawJoin(t, n, greeting()) // there is room again
				}
			})
		}
	})
}

// TestHalfClosed checks that a connection that ends before its HELLO leaves nothing.
func TestHalfClosed(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		opts.MaxHalfOpen = 4
		n := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
		hello := helloFrame(func(*frame.Greeting) {})
		for i := range 50 {
			nc, err := net.Dial("tcp", hostPort(n))
			require.NoError(t, err)
			_, err = nc.Write(hello[:i])
			require.NoError(t, err)
			if i%2 == 0 {
				require.NoError(t, nc.(*net.TCPConn).SetLinger(0))
			}
			require.NoError(t, nc.Close())
			if i%4 == 3 { // room for these was freed
				driveUntil(t, "join", func() bool {
					nc, err := net.Dial("tcp", hostPort(n))
					require.NoError(t, err)
					defer func() { _ = nc.Close() }()
					_, _ = nc.Write(hello)
					_ = nc.SetDeadline(time.Now().Add(patience))
					got, _ := nc.Read(make([]byte, 1))
					return got == 1
				}, n)
			}
		}
	})
}
