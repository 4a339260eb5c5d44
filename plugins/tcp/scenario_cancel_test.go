package tcp_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// cancelNow cancels an operation and runs its callback without any Progress in between.
func cancelNow(t testing.TB, c *na.Context, o *na.Op, end *outcome) {
	t.Helper()
	require.False(t, end.done())
	o.Cancel()
	for c.Upper().Queued() > 0 {
		c.Trigger(0)
	}
	require.Equal(t, 1, end.n, "the callback of a canceled operation runs in the next Trigger")
	requireCode(t, na.ErrCanceled, end.Err)
}

// someKey is the key of memory that a raw peer claims to have.
func someKey(n int64) na.Key { return na.Key{Token: [16]byte{1, 2, 3}, Len: n, Access: na.ReadWrite} }

// openJoined opens a node that has a session with a raw peer.
func openJoined(t testing.TB, opts tcp.Options, cfg na.Config) (*node, *rawPeer, na.Addr) {
	t.Helper()
	l := rawListen(t)
	n := open(t, "tcp://", opts, cfg, 1)
	return n, join(t, n, l), l.addr()
}

// join has a node make a session with a raw peer.
func join(t testing.TB, n *node, l *rawListener) *rawPeer {
	t.Helper()
	return joinAs(t, n, l, greeting())
}

// joinAs is join by a peer that announces g.
func joinAs(t testing.TB, n *node, l *rawListener, g frame.Greeting) *rawPeer {
	t.Helper()
	o, end := newOp(n.ctx())
	require.NoError(t, n.ctx().SendUnexpected(o, l.addr(), 1, []byte("hello")))
	_ = n.ctx().Progress(0)
	r := l.greet(g)
	requireSuccess(t, "hello", end, n)
	_, payload := r.readKind(frame.Unexpected)
	require.Equal(t, "hello", string(payload))
	r.limit++
	return r
}

// requireExchange proves that the session with a raw peer is in order, both ways.
func requireExchange(t testing.TB, n *node, r *rawPeer, to na.Addr, text string) {
	t.Helper()
	o, end := newOp(n.ctx())
	require.NoError(t, n.ctx().SendUnexpected(o, to, 1, []byte(text)))
	requireSuccess(t, "send "+text, end, n)
	_, payload := r.readKind(frame.Unexpected)
	require.Equal(t, text, string(payload))
	r.limit++
	r.send(frame.Header{Kind: frame.Unexpected, Op: 1, Tag: 2}, []byte("re: "+text))
	got, _, _ := recvUnexpected(t, n.ctx(), n)
	require.Equal(t, "re: "+text, got)
}

// TestCancelGet stops the owner of the memory in the middle of a piece. The get is canceled at
// once, nothing of the rest lands in its buffer, and the session continues when the owner does.
func TestCancelGet(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		n, r, to := openJoined(t, opts, na.Config{})
		const size, piece, half = 1 << 20, 256 << 10, 100_000
		buf := make([]byte, size)
		mem, err := n.cls.NewMem(buf)
		require.NoError(t, err)
		o, end := newOp(n.ctx())
		require.NoError(t, n.ctx().Get(o, mem, 0, to, someKey(size), 0, size))
		_ = n.ctx().Progress(0)
		get, _ := r.readKind(frame.Get)
		require.Equal(t, int64(size), get.Tail.Length)

		theirs := bytes.Repeat([]byte{0xAA}, piece)
		r.sendFront(frame.Header{Kind: frame.Data, Flags: frame.FlagAnswer, Op: get.Op}, piece)
		r.write(theirs[:half])
		driveUntilStalled(n)

		cancelNow(t, n.ctx(), o, end)
		require.Equal(t, theirs[:half], buf[:half], "half a piece had arrived")
		for i := range buf { // the memory is free again: the race detector reports any other use
			buf[i] = 0x11
		}

		r.write(theirs[half:])
		r.sendFront(frame.Header{Kind: frame.Data, Flags: frame.FlagAnswer, Op: get.Op, Tag: piece}, piece)
		r.write(theirs)
		r.send(frame.Header{Kind: frame.Done, Op: get.Op}, nil)
		canceled, _ := r.readKind(frame.Cancel)
		require.Equal(t, get.Op, canceled.Op)
		requireExchange(t, n, r, to, "after the cancel")
		require.Equal(t, bytes.Repeat([]byte{0x11}, size), buf, "bytes arrived after the callback")

		// The same operation again, to its end.
		require.NoError(t, n.ctx().Get(o, mem, 0, to, someKey(size), 0, piece))
		_ = n.ctx().Progress(0)
		again, _ := r.readKind(frame.Get)
		require.NotEqual(t, get.Op, again.Op)
		r.sendFront(frame.Header{Kind: frame.Data, Flags: frame.FlagAnswer, Op: again.Op}, piece)
		r.write(theirs)
		r.send(frame.Header{Kind: frame.Done, Op: again.Op}, nil)
		*end = outcome{}
		requireSuccess(t, "get again", end, n)
		require.Equal(t, theirs, buf[:piece])
		require.Zero(t, n.ctx().Stats().PeersLost)
	})
}

// driveUntilStalled drives n until nothing has moved for a while: its output has filled the sockets.
func driveUntilStalled(n *node) {
	for still := 0; still < 10; {
		before := time.Now()
		_ = n.ctx().Progress(5 * time.Millisecond)
		if n.ctx().Trigger(0); time.Since(before) >= 5*time.Millisecond {
			still++
		}
	}
}

// TestCancelPut cancels a put to a peer that does not read, with a piece that is written in part.
// The put is canceled at once, its memory is ours again, the rest of the piece is zeroes, and the
// session continues when the peer reads.
func TestCancelPut(t *testing.T) {
	t.Parallel()
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		n, r, to := openJoined(t, opts, na.Config{PeerTimeout: time.Minute})
		const size = 24 << 20
		data := make([]byte, size)
		for i := range data {
			data[i] = byte(i%251) + 1 // never zero
		}
		mem, err := n.cls.NewMem(data)
		require.NoError(t, err)
		o, end := newOp(n.ctx())
		require.NoError(t, n.ctx().Put(o, mem, 0, to, someKey(size), 0, size))
		driveUntilStalled(n)

		cancelNow(t, n.ctx(), o, end)
		for i := range data {
			data[i] = 0xFE // no byte of the pattern
		}

		var op uint64
		seen, zeroes := 0, 0
		for {
			h, payload := r.read()
			if h.Kind == frame.Cancel {
				require.Equal(t, op, h.Op)
				break
			}
			if op = h.Op; h.Kind == frame.Put {
				continue
			}
			require.Equal(t, frame.Data, h.Kind)
			require.Equal(t, seen, int(h.Tag))
			for i, b := range payload {
				switch {
				case b == 0:
					zeroes++
				case zeroes > 0 || b != byte((seen+i)%251)+1:
					require.FailNow(t, "memory of a canceled put was sent", "byte %d is %#x after %d zeroes", seen+i, b, zeroes)
				}
			}
			seen += len(payload)
		}
		require.Less(t, seen, size)
		if !opts.Portable { // the portable writer has copied some of the rest
			require.NotZero(t, zeroes)
		}
		r.send(frame.Header{Kind: frame.Done, Op: op}, nil) // late
		requireExchange(t, n, r, to, "after the cancel")
		require.Equal(t, int64(1), n.ctx().Stats().LateDropped)
		require.Zero(t, n.ctx().Stats().PeersLost)
	})
}

// TestDeregisterWhileRead deregisters memory that is being sent to a peer that does not read.
func TestDeregisterWhileRead(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		const size = 24 << 20
		n := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
		data := bytes.Repeat([]byte{0x55}, size)
		mem, err := n.cls.Register(na.ReadOnly, data)
		require.NoError(t, err)
		r := rawJoin(t, n, greeting())
		r.send(frame.Header{Kind: frame.Get, Op: 5, Tail: frame.Tail{Token: mem.Key().Token, Length: size}}, nil)
		driveUntilStalled(n)

		o, end := newOp(n.ctx())
		require.NoError(t, n.ctx().Deregister(o, mem))
		n.ctx().Trigger(0)
		require.Equal(t, 1, end.n, "a peer that does not read cannot delay the end of a registration")
		require.NoError(t, end.Err)
		for i := range data {
			data[i] = 0xFE
		}
		zeroes := 0
		for {
			h, payload := r.read()
			if h.Kind == frame.Ping { // a busy machine was slow to read
				continue
			}
			if h.Kind == frame.Done {
				requireCode(t, na.ErrRevoked, na.Code(h.Tag))
				break
			}
			require.Equal(t, frame.Data, h.Kind)
			zeroes += bytes.Count(payload, []byte{0})
			require.Equal(t, len(payload), bytes.Count(payload, []byte{0})+bytes.Count(payload, []byte{0x55}))
		}
		require.NotZero(t, zeroes)
		r.send(frame.Header{Kind: frame.Ping}, nil)
		r.readKind(frame.Pong)
	})
}

// TestCancelUnderLoad cancels an operation while another goroutine is reading or writing the memory
// at full speed. The callback runs in the next Trigger all the same, if the system releases it in
// time, and the memory is not accessed after it.
func TestCancelUnderLoad(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		const size = 4 << 20
		a := open(t, "tcp://", opts, na.Config{}, 1)
		b := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
		to := lookup(t, a, b.cls.Addr().String())
		source, err := b.cls.Register(na.ReadOnly, make([]byte, size))
		require.NoError(t, err)
		sink, err := b.cls.Register(na.WriteOnly, make([]byte, size))
		require.NoError(t, err)
		buf := make([]byte, size)
		mem, err := a.cls.NewMem(buf)
		require.NoError(t, err)
		defer startDriver(a)()
		defer startDriver(b)()
		// How long an operation takes is the machine's affair. The pause before the cancel finds it out: it grows
		// after an operation that the cancel has ended, and is halved after one that has ended before.
		pause, canceled, whole := 50*time.Microsecond, 0, 0
		for i := 0; canceled < 40 || whole < 8; i++ {
			require.Less(t, i, 2000, "%d operations were canceled, %d were not", canceled, whole)
			o, end := newOp(a.ctx())
			if i%2 == 0 {
				require.NoError(t, a.ctx().Get(o, mem, 0, to, source.Key(), 0, size))
			} else {
				require.NoError(t, a.ctx().Put(o, mem, 0, to, sink.Key(), 0, size))
			}
			if pause > 0 {
				timer := time.NewTimer(pause)
				<-timer.C
			}
			o.Cancel()
			a.ctx().Trigger(0)
			if end.n == 0 { // it was ending by itself, or its memory is in a system call for longer than Trigger waits
				driveUntil(t, "the end", end.done, a)
			}
			require.Equal(t, 1, end.n, "round %d", i)
			if end.Err != nil {
				requireCode(t, na.ErrCanceled, end.Err)
				canceled++
				pause += pause/8 + time.Microsecond
			} else {
				whole++
				pause /= 2
			}
			buf[i] = byte(i)
		}
	})
}
