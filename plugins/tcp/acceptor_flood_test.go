package tcp_test

import (
	"context"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// heapInUse is the memory in use after a collection.
func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestNeverReads checks that a peer that requests bulk data and sends keepalives, but never reads,
// is cut when WriteTimeout has passed (F68), operations that wait for it end, and it takes no
// memory meanwhile. A peer that reads slowly is not cut.
func TestNeverReads(t *testing.T) {
	if !leak.Alone(t) {
		return
	}
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		opts.WriteTimeout = 500 * time.Millisecond
		for !neverReads(t, opts) { // on a machine so busy that the slow peer has not read for long, either
			opts.WriteTimeout *= 2
			require.Less(t, opts.WriteTimeout, 20*time.Second, "the slow peer is cut, whatever WriteTimeout is")
		}
	})
}

// neverReads reports whether the slow peer has stayed. It has to unless this test was too late to
// read for it.
func neverReads(t *testing.T, opts tcp.Options) bool {
	const size = 32 << 20
	limit := opts.WriteTimeout
	n := open(t, "tcp://127.0.0.1:0", opts, na.Config{PeerTimeout: time.Hour}, 1)
	mem, err := n.cls.Register(na.ReadOnly, make([]byte, size))
	require.NoError(t, err)
	get := frame.Header{Kind: frame.Get, Op: 1, Tail: frame.Tail{Token: mem.Key().Token, Length: size}}

	slow := rawJoin(t, n, greeting())
	slow.send(get, nil)
	bystander := rawJoin(t, n, greeting())
	r := rawJoin(t, n, greeting())
	m := r.message(n)
	o, end := newOp(n.ctx())
	require.NoError(t, n.ctx().RecvExpected(o, m, 5, make([]byte, 10)))
	before, begun := heapInUse(), time.Now()
	for i := range 64 {
		get.Op = uint64(i + 1)
		r.send(get, nil)
	}
	chatting := make(chan struct{})
	go func() { // it is alive, and requests more and more answers
		defer close(chatting)
		ping := frame.Header{Kind: frame.Ping, Context: r.peer.Context, Credit: r.limit}
		many := make([]byte, 0, 100*frame.HeaderSize)
		for range 100 {
			many = ping.AppendFront(many, 0)
		}
		for _, err := r.nc.Write(many); err == nil; _, err = r.nc.Write(many) {
			pause(5 * time.Millisecond)
		}
	}()
	var last, longest time.Duration // when slow has read, and how long it has not
	var gone error
	most, left := int64(0), size
	buf := make([]byte, 1<<20) // a system reports room when a third of its buffer is free
	driveUntil(t, "the cut", func() bool {
		if now := time.Since(begun); now-last > limit/16 && left > 0 && gone == nil { // so all of it takes twice the limit
			longest, last = max(longest, now-last), now
			most = max(most, heapInUse()-before)
			var read int
			read, gone = slow.nc.Read(buf)
			left -= read
		}
		return end.done()
	}, n)
	took := time.Since(begun)
	requireCode(t, na.ErrPeerLost, end.Err)
	require.ErrorContains(t, end.Err, "has read nothing")
	require.GreaterOrEqual(t, took, limit*8/10)
	require.Less(t, most, int64(4<<20), "send queue")
	t.Logf("cut after %v, memory grew by %d bytes, the slow peer read after %v at most", took, most, longest)
	<-chatting
	bystander.send(frame.Header{Kind: frame.Ping}, nil)
	bystander.readKind(frame.Pong)
	stayed := n.ctx().Stats().Peers == 2
	require.True(t, stayed && gone == nil || longest > limit/8, "a slow reader stays: %d peers, %v", n.ctx().Stats().Peers, gone)
	_ = slow.nc.Close()
	return stayed
}

// message sends a message and returns the address of r as its receiver sees it.
func (r *rawPeer) message(n *node) na.Addr {
	r.t.Helper()
	r.send(mail, []byte("x"))
	_, from, _ := recvUnexpected(r.t, n.ctx(), n)
	return from
}

func pause(d time.Duration) {
	timer := time.NewTimer(d)
	<-timer.C
}

// TestSlowloris checks a thousand connections that send a byte of their HELLO now and then, none of
// which completes it: each is cut when HandshakeTimeout has passed (F69), and others are accepted
// all the time.
func TestSlowloris(t *testing.T) {
	if !leak.Alone(t) {
		return
	}
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		many, limit := long.Or(300, 1000), 500*time.Millisecond
		opts.MaxHalfOpen, opts.HandshakeTimeout = many+16, limit
		n := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
		stop := startDriver(n)
		defer stop()
		hello := helloFrame(func(*frame.Greeting) {})
		before := heapInUse()
		conns := make([]net.Conn, many)
		for i := range conns {
			nc, err := net.Dial("tcp", hostPort(n))
			require.NoError(t, err)
			defer func() { _ = nc.Close() }()
			conns[i] = nc
		}
		var all sync.WaitGroup
		lived := make([]time.Duration, many)
		begun := time.Now()
		for i, nc := range conns {
			all.Go(func() {
				gone := make(chan struct{})
				go func() {
					_, _ = io.Copy(io.Discard, nc) // closed or reset
					lived[i] = time.Since(begun)
					close(gone)
				}()
				for _, b := range hello[:len(hello)-1] {
					_, _ = nc.Write([]byte{b})
					timer := time.NewTimer(limit / 10)
					select {
					case <-gone:
						timer.Stop()
						return
					case <-timer.C:
					}
				}
				<-gone
			})
		}
		grown := heapInUse() - before
		for range 10 {
			rawJoin(t, n, greeting())
		}
		all.Wait()
		longest := time.Duration(0)
		for _, d := range lived {
			longest = max(longest, d)
		}
		t.Logf("cut after %v at most; memory of both sides grew by %d bytes", longest, grown)
		require.Less(t, longest, 10*limit, "a byte now and then must not win time")
		require.Less(t, grown, int64(16<<20))
		require.Equal(t, 10, n.ctx().Stats().Peers)
		rawJoin(t, n, greeting())
	})
}

// TestConnectFlood checks that of connections beyond MaxHalfOpen the oldest are closed (F70):
// memory does not grow meanwhile, and sessions are served, before a peer would consider this
// process dead.
func TestConnectFlood(t *testing.T) {
	if !leak.Alone(t) {
		return
	}
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		const limit, at = 16, 32
		flood := int64(long.Or(64, 320))
		opts.MaxHalfOpen, opts.HandshakeTimeout = limit, time.Minute
		n := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
		defer startDriver(n)()
		settled := rawJoin(t, n, greeting())
		before := heapInUse()
		var all sync.WaitGroup
		var closed atomic.Int64
		enough, stop := context.WithCancel(t.Context())
		defer stop()
		for range at {
			all.Go(func() {
				for enough.Err() == nil {
					nc, err := net.Dial("tcp", hostPort(n))
					if err != nil {
						continue // also well
					}
					leave := context.AfterFunc(enough, func() { _ = nc.Close() }) // the last ones stay
					_, _ = io.Copy(io.Discard, nc)
					if leave() && closed.Add(1) == flood {
						stop()
					}
					_ = nc.Close()
				}
			})
		}
		pings, most, longest := 0, int64(0), time.Duration(0)
		ended := make(chan struct{})
		go func() { all.Wait(); close(ended) }()
		for over := false; !over; pings++ {
			begun := time.Now()
			settled.send(frame.Header{Kind: frame.Ping}, nil)
			settled.readKind(frame.Pong)
			longest = max(longest, time.Since(begun))
			most = max(most, heapInUse()-before)
			select {
			case <-ended:
				over = true
			default:
			}
		}
		t.Logf("%d connections closed, %d pings answered meanwhile, after %v at most, memory grew by %d bytes at most", closed.Load(), pings, longest, most)
		require.Less(t, longest, 5*time.Second, "PeerTimeout")
		require.Less(t, most, int64(4<<20))
		rawJoin(t, n, greeting())
		require.Equal(t, 2, n.ctx().Stats().Peers)
	})
}
