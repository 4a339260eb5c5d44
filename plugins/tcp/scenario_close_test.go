package tcp_test

import (
	"context"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// TestGoaway checks that a side that closes notifies its peers, whichever side has dialed.
func TestGoaway(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		for range 20 {
			n := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
			in := rawJoin(t, n, greeting())
			out := rawListen(t)
			o, end := newOp(n.ctx())
			require.NoError(t, n.ctx().SendUnexpected(o, out.addr(), 1, []byte("x")))
			_ = n.ctx().Progress(0)
			r := out.join()
			requireSuccess(t, "hello", end, n)
			r.readKind(frame.Unexpected)
			require.NoError(t, n.cls.Close())
			for _, peer := range []*rawPeer{in, r} {
				got, text := peer.readEnd()
				require.Equal(t, na.ErrClosed, got)
				require.Contains(t, text, "closed")
			}
		}
	})
}

// TestGoawayWhileDriven closes while another goroutine drives: nothing is given back before the
// peers have been notified.
func TestGoawayWhileDriven(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		for range 100 {
			n := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
			r := rawJoin(t, n, greeting())
			ctx, cancel := context.WithCancel(context.Background())
			var one sync.WaitGroup
			one.Go(func() {
				for ctx.Err() == nil {
					_ = n.ctx().Progress(0)
				}
			})
			n.close()
			got, _ := r.readEnd()
			require.Equal(t, na.ErrClosed, got)
			cancel()
			one.Wait()
		}
	})
}

// TestGoawayAfterMessages checks that messages sent before Close arrive before the Goaway.
func TestGoawayAfterMessages(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		for range 20 {
			n, r, to := openJoined(t, opts, na.Config{})
			var ends []*outcome
			for i := range 10 {
				o, end := newOp(n.ctx())
				require.NoError(t, n.ctx().SendUnexpected(o, to, na.Tag(i), make([]byte, 4000)))
				ends = append(ends, end)
			}
			for _, end := range ends {
				requireSuccess(t, "send", end, n)
			}
			require.NoError(t, n.cls.Close())
			for i := range 10 {
				h, _ := r.readKind(frame.Unexpected)
				require.Equal(t, uint64(i), h.Tag)
			}
			got, _ := r.readEnd()
			require.Equal(t, na.ErrClosed, got)
		}
	})
}

// TestGoawayBeforeReset checks that the reason of the peer's Goaway is received although writing to
// the peer fails first.
func TestGoawayBeforeReset(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		const size = 24 << 20
		n, r, to := openJoined(t, opts, na.Config{})
		mem, err := n.cls.NewMem(make([]byte, size))
		require.NoError(t, err)
		o, end := newOp(n.ctx())
		require.NoError(t, n.ctx().Put(o, mem, 0, to, someKey(size), 0, size))
		driveUntilStalled(n)
		last := frame.Header{Kind: frame.Goaway, Tag: uint64(na.ErrNoMemory)}
		r.write(last.Append(nil, []byte("I am full")))
		require.NoError(t, r.nc.Close()) // resets: there is much that was not read
		driveUntil(t, "end of the put", end.done, n)
		requireCode(t, na.ErrPeerLost, end.Err)
		require.ErrorContains(t, end.Err, "I am full")
	})
}

// TestGoawayThenHello checks that a connection that the peer has refused is closed, whatever it
// sends next.
func TestGoawayThenHello(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		l := rawListen(t)
		n := open(t, "tcp://", opts, na.Config{}, 1)
		o, end := newOp(n.ctx())
		require.NoError(t, n.ctx().SendUnexpected(o, l.addr(), 1, []byte("hello")))
		_ = n.ctx().Progress(0)
		require.NoError(t, l.l.(*net.TCPListener).SetDeadline(time.Now().Add(patience)))
		nc, err := l.l.Accept()
		require.NoError(t, err)
		liar := newRaw(t, nc)
		liar.readHello()
		refusal := frame.Header{Kind: frame.Goaway, Tag: uint64(na.ErrDuplicate)}
		liar.write(append(refusal.Append(nil, nil), helloFrame(func(*frame.Greeting) {})...))
		stop := startDriver(n)
		r := l.join() // it dials again
		stop()
		requireSuccess(t, "hello", end, n)
		_, payload := r.readKind(frame.Unexpected)
		require.Equal(t, "hello", string(payload))
	})
}

// TestCloseInFlight closes with operations of every kind in flight. All end with ErrClosed in the
// next Trigger, without Progress, and everything is given back.
func TestCloseInFlight(t *testing.T) {
	t.Parallel()
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		const size = 24 << 20
		l := rawListen(t)
		n := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
		r, to := join(t, n, l), l.addr()
		rawDial(t, n)        // half open
		mute := rawListen(t) // accepts and does not answer
		served, err := n.cls.Register(na.ReadWrite, make([]byte, size))
		require.NoError(t, err)
		mem, err := n.cls.NewMem(make([]byte, size)) // where the get writes
		require.NoError(t, err)
		put, err := n.cls.NewMem(make([]byte, size))
		require.NoError(t, err)
		var ends []*outcome
		start := func(f func(o *na.Op) error) {
			o, end := newOp(n.ctx())
			require.NoError(t, f(o))
			ends = append(ends, end)
		}
		start(func(o *na.Op) error { return n.ctx().Get(o, mem, 0, to, someKey(size), 0, size) })
		start(func(o *na.Op) error { return n.ctx().RecvExpected(o, to, 5, make([]byte, 10)) })
		start(func(o *na.Op) error { return n.ctx().RecvUnexpected(o) })
		start(func(o *na.Op) error { return n.ctx().SendUnexpected(o, mute.addr(), 5, []byte("x")) })
		start(func(o *na.Op) error { return n.ctx().Put(o, put, 0, mute.addr(), someKey(size), 0, size) })
		start(func(o *na.Op) error { return n.ctx().RecvExpected(o, n.cls.Addr(), 5, make([]byte, 10)) })
		driveUntilStalled(n)
		get, _ := r.readKind(frame.Get)
		r.sendFront(frame.Header{Kind: frame.Data, Flags: frame.FlagAnswer, Op: get.Op}, 256<<10)
		r.write(make([]byte, 1000)) // the middle of a piece
		r2 := rawJoin(t, n, greeting())
		r2.send(frame.Header{Kind: frame.Get, Op: 1, Tail: frame.Tail{Token: served.Key().Token, Length: size}}, nil)
		start(func(o *na.Op) error { return n.ctx().Put(o, put, 0, to, someKey(size), 0, size) })
		driveUntilStalled(n)
		for _, end := range ends {
			require.False(t, end.done())
		}
		require.NoError(t, n.cls.Close())
		n.ctx().Trigger(0)
		for i, end := range ends {
			require.Equal(t, 1, end.n, "operation %d", i)
			require.ErrorIs(t, end.Err, na.ErrClosed)
		}
		// The background poller may be polling, and then it releases the context.
		require.Eventually(t, n.cls.Closed, patience, time.Millisecond)
		require.ErrorIs(t, n.ctx().Progress(0), na.ErrClosed)
	})
}

// TestStress has goroutines on both sides send, receive, put, get and cancel, all on one context each, and closes both
// in the middle of it.
func TestStress(t *testing.T) {
	t.Parallel()
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		for round := range long.Or(3, 5) {
			stress(t, opts, uint64(round))
		}
	})
}

func stress(t *testing.T, opts tcp.Options, seed uint64) {
	const size, workers = 300_000, 4
	a := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
	b := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
	var started, ended, good atomic.Int64
	var all sync.WaitGroup
	for side, pair := range [][2]*node{{a, b}, {b, a}} {
		me, peer := pair[0], pair[1]
		to := peer.cls.Addr()
		for w := range workers {
			source, err := peer.cls.Register(na.ReadOnly, make([]byte, size))
			require.NoError(t, err)
			sink, err := peer.cls.Register(na.WriteOnly, make([]byte, size))
			require.NoError(t, err)
			all.Go(func() {
				rng := rand.New(rand.NewPCG(seed, uint64(side*workers+w)))
				mine, _ := me.cls.NewMem(make([]byte, size))
				buf := make([]byte, 4096)
				var end atomic.Int64
				o := me.ctx().NewOp(func(_ *na.Op, r na.Result) {
					if r.Envelope != nil {
						r.Envelope.Free()
					}
					if r.Err == nil {
						good.Add(1)
					}
					ended.Add(1)
					end.Add(1)
				})
				for n := int64(1); ; n++ {
					var err error
					started.Add(1)
					switch rng.IntN(5) {
					case 0:
						err = me.ctx().SendUnexpected(o, to, 1, buf[:rng.IntN(len(buf))])
					case 1:
						err = me.ctx().RecvUnexpected(o)
					case 2:
						err = me.ctx().Put(o, mine, 0, to, sink.Key(), 0, rng.Int64N(size))
					case 3:
						err = me.ctx().Get(o, mine, 0, to, source.Key(), 0, rng.Int64N(size))
					case 4:
						err = me.ctx().RecvExpected(o, to, na.Tag(w), buf)
					}
					if err != nil { // closed
						started.Add(-1)
						break
					}
					tries := rng.IntN(20)
					for i := 0; end.Load() < n; i++ {
						if i == tries {
							o.Cancel()
						}
						_ = me.ctx().Progress(time.Millisecond)
						me.ctx().Trigger(0)
					}
				}
			})
		}
	}
	for limit := time.Now().Add(patience); good.Load() < 300; {
		require.True(t, time.Now().Before(limit), "%d operations went well", good.Load())
		pause := time.NewTimer(time.Millisecond)
		<-pause.C
	}
	_ = a.cls.Close()
	_ = b.cls.Close()
	all.Wait()
	a.close()
	b.close()
	require.Equal(t, started.Load(), ended.Load())
}
