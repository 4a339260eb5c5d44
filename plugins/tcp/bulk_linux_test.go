package tcp_test

import (
	"bytes"
	"crypto/rand"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

const bulkSize = 1 << 20 // more than enough to want a second connection

// dialBulk makes the second connection of the session of r, which dialled n.
func (r *rawPeer) dialBulk(n *node) *rawPeer {
	r.t.Helper()
	second := rawDial(r.t, n)
	g := r.mine
	g.Label = r.peer.Label
	second.hello(g)
	second.limit = 1 // its credit is old, and has no effect
	return second
}

// readMove reads the data of a get up to its GETDONE, all of it with the flags of the connection.
func (r *rawPeer) readMove(id uint64) (data []byte) {
	r.t.Helper()
	for {
		h, payload := r.read()
		require.Equal(r.t, id, h.Op, h.String())
		if h.Kind == frame.Done {
			require.Zero(r.t, h.Tag)
			return data
		}
		require.Equal(r.t, frame.Data, h.Kind)
		require.Equal(r.t, len(data), int(h.Tag))
		data = append(data, payload...)
	}
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

// TestBulkOfDialer checks that a peer that dialed makes a second connection, and transfers that
// begin once that is up use it, in both directions.
func TestBulkOfDialer(t *testing.T) {
	n := open(t, "tcp://127.0.0.1:0", tcp.Options{}, na.Config{}, 1)
	want := randomBytes(bulkSize)
	owned := bytes.Clone(want) // the node's own goroutine reads and writes it
	mem, err := n.cls.Register(na.ReadWrite, owned)
	require.NoError(t, err)
	r := rawJoin(t, n, greeting())
	require.Len(t, r.peer.Label, 16)
	tail := frame.Tail{Token: mem.Key().Token, Length: bulkSize}

	r.send(frame.Header{Kind: frame.Get, Op: 1, Tail: tail}, nil)
	require.Equal(t, want, r.readMove(1), "what began before stays")

	second := r.dialBulk(n)
	second.readHello()
	require.Equal(t, r.peer.Label, second.peer.Label)
	r.send(frame.Header{Kind: frame.Get, Op: 2, Tail: tail}, nil)
	require.Equal(t, want, second.readMove(2))
	small := tail
	small.Length = 100
	r.send(frame.Header{Kind: frame.Get, Op: 3, Tail: small}, nil)
	require.Equal(t, want[:100], r.readMove(3), "what is small does not need it")

	theirs := randomBytes(bulkSize)
	second.send(frame.Header{Kind: frame.Put, Op: 4, Tail: tail}, nil)
	second.sendFront(frame.Header{Kind: frame.Data, Op: 4}, bulkSize)
	second.write(theirs)
	h, _ := r.readKind(frame.Done)
	require.Equal(t, uint64(4), h.Op)
	require.Zero(t, h.Tag)
	_ = n.ctx().Stats() // takes the lock under which the node finishes puts, for the race detector
	require.True(t, bytes.Equal(theirs, owned), "the memory holds what was put")
	_ = n.ctx().Stats()

	// A put that is canceled in the middle leaves nothing behind.
	second.send(frame.Header{Kind: frame.Put, Op: 5, Tail: tail}, nil)
	second.sendFront(frame.Header{Kind: frame.Data, Op: 5}, 1000)
	second.write(make([]byte, 1000))
	second.send(frame.Header{Kind: frame.Cancel, Op: 5}, nil)
	second.send(frame.Header{Kind: frame.Put, Op: 6, Tail: small}, nil)
	second.sendFront(frame.Header{Kind: frame.Data, Op: 6}, 100)
	second.write(theirs[:100])
	h, _ = r.readKind(frame.Done)
	require.Equal(t, uint64(6), h.Op)

	// The end of the second connection is the end of the session.
	require.NoError(t, second.nc.Close())
	got, _ := r.readEnd()
	require.Equal(t, na.ErrPeerLost, got)
	require.Equal(t, int64(1), n.ctx().Stats().PeersLost)
}

// TestBulkOfListener checks that a peer that listens is dialed again when the first large put
// begins; transfers that begin then use the second connection, and a put that is canceled is
// canceled there, behind its data.
func TestBulkOfListener(t *testing.T) {
	n := open(t, "tcp://", tcp.Options{}, na.Config{}, 1)
	l := rawListen(t)
	name := bytes.Repeat([]byte{7}, 16)
	g := greeting()
	g.Label = name
	r, to := joinAs(t, n, l, g), l.addr()
	data := randomBytes(bulkSize)
	mem, err := n.cls.NewMem(data)
	require.NoError(t, err)
	put := func(what string, from *rawPeer) {
		o, end := newOp(n.ctx())
		require.NoError(t, n.ctx().Put(o, mem, 0, to, someKey(bulkSize), 0, bulkSize))
		var got []byte
		h, _ := from.read()
		require.Equal(t, frame.Put, h.Kind, what)
		for len(got) < bulkSize {
			var payload []byte
			h, payload = from.read()
			require.Equal(t, frame.Data, h.Kind, what)
			got = append(got, payload...)
		}
		require.Equal(t, data, got, what)
		r.send(frame.Header{Kind: frame.Done, Op: h.Op}, nil)
		requireSuccess(t, what, end, n)
	}
	defer startDriver(n)()
	put("before it", r)
	second := newRaw(t, l.accept())
	second.readHello()
	require.Equal(t, name, second.peer.Label)
	require.Equal(t, r.peer.Incarnation, second.peer.Incarnation)
	g.Target = second.peer.Context
	second.hello(g)
	require.Eventually(t, func() bool { return n.ctx().Stats().BulkFlows == 1 }, patience, time.Millisecond)
	put("after it", second)

	o, end := newOp(n.ctx())
	require.NoError(t, n.ctx().Put(o, mem, 0, to, someKey(bulkSize), 0, bulkSize))
	h, _ := second.read()
	require.Equal(t, frame.Put, h.Kind)
	o.Cancel()
	for h.Kind != frame.Cancel {
		h, _ = second.read()
	}
	driveUntil(t, "cancel", end.done, n)
	require.Zero(t, n.ctx().Stats().PeersLost)
}

// TestBulkOfLaterRelease checks that fields that a later release sends behind the name of the
// second connection are skipped, at the listening side and at the dialing one.
func TestBulkOfLaterRelease(t *testing.T) {
	n := open(t, "tcp://127.0.0.1:0", tcp.Options{}, na.Config{}, 1)
	defer startDriver(n)()
	first := rawJoin(t, n, greeting())
	second := rawDial(t, n)
	g := first.mine
	g.Label = append(bytes.Clone(first.peer.Label), "later"...)
	second.hello(g)
	second.readHello()
	require.Equal(t, first.peer.Label, second.peer.Label)

	l := rawListen(t)
	name := bytes.Repeat([]byte{7}, 16)
	g = greeting()
	g.Label = append(bytes.Clone(name), "later"...)
	dialler := open(t, "tcp://", tcp.Options{}, na.Config{}, 1)
	joinAs(t, dialler, l, g)
	mem, err := dialler.cls.NewMem(randomBytes(bulkSize))
	require.NoError(t, err)
	o, _ := newOp(dialler.ctx())
	require.NoError(t, dialler.ctx().Put(o, mem, 0, l.addr(), someKey(bulkSize), 0, bulkSize))
	defer startDriver(dialler)()
	second = newRaw(t, l.accept())
	second.readHello()
	require.Equal(t, name, second.peer.Label)
	g.Target = second.peer.Context
	second.hello(g)
	require.Eventually(t, func() bool { return dialler.ctx().Stats().BulkFlows == 1 }, patience, time.Millisecond)
}

// TestBulkRefused checks that a session whose second connection is refused continues without one.
func TestBulkRefused(t *testing.T) {
	n := open(t, "tcp://", tcp.Options{}, na.Config{}, 1)
	l := rawListen(t)
	g := greeting()
	g.Label = bytes.Repeat([]byte{7}, 16)
	r, to := joinAs(t, n, l, g), l.addr()
	mem, err := n.cls.NewMem(make([]byte, bulkSize))
	require.NoError(t, err)
	defer startDriver(n)()
	for i := range 3 {
		o, end := newOp(n.ctx())
		require.NoError(t, n.ctx().Put(o, mem, 0, to, someKey(bulkSize), 0, bulkSize))
		h, _ := r.read()
		for got := 0; got < bulkSize; {
			var payload []byte
			h, payload = r.read()
			got += len(payload)
		}
		if i == 0 {
			second := newRaw(t, l.accept())
			second.readHello()
			goaway := frame.Header{Kind: frame.Goaway, Tag: uint64(na.ErrNoEntry)}
			second.write(goaway.Append(nil, []byte("no")))
			second.readEnd()
		}
		r.send(frame.Header{Kind: frame.Done, Op: h.Op}, nil)
		requireSuccess(t, "put", end, n)
	}
	require.NoError(t, l.l.(*net.TCPListener).SetDeadline(time.Now().Add(20*time.Millisecond)))
	_, err = l.l.Accept()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "it is not tried again")
	require.Zero(t, n.ctx().Stats().PeersLost)
	require.Zero(t, n.ctx().Stats().BulkFlows)
}

// TestBulkOfUnknownPeer checks that a session cannot be reached by a connection that it did not offer,
// that is in use, or that another process was offered.
func TestBulkOfUnknownPeer(t *testing.T) {
	n := open(t, "tcp://127.0.0.1:0", tcp.Options{}, na.Config{}, 1)
	r := rawJoin(t, n, greeting())
	refused := func(what string, change func(g *frame.Greeting)) {
		second := rawDial(t, n)
		g := r.mine
		g.Label = r.peer.Label
		change(&g)
		second.hello(g)
		got, text := second.readEnd()
		require.Equal(t, na.ErrNoEntry, got, what)
		require.Contains(t, text, "no session for this connection", what)
	}
	refused("guessed", func(g *frame.Greeting) { g.Label = bytes.Repeat([]byte{7}, 16) })
	refused("another process", func(g *frame.Greeting) { g.Incarnation[3]++ })
	second := r.dialBulk(n)
	second.readHello()
	refused("in use", func(*frame.Greeting) {})

	r.send(frame.Header{Kind: frame.Ping}, nil)
	r.readKind(frame.Pong)
}

// TestMessagesPassBulk checks that messages are sent to a peer that does not read the second
// connection.
func TestMessagesPassBulk(t *testing.T) {
	n := open(t, "tcp://127.0.0.1:0", tcp.Options{}, na.Config{PeerTimeout: time.Minute}, 1)
	const size = 32 << 20
	mem, err := n.cls.Register(na.ReadOnly, make([]byte, size))
	require.NoError(t, err)
	r := rawJoin(t, n, greeting())
	second := r.dialBulk(n)
	second.readHello()
	r.send(frame.Header{Kind: frame.Get, Op: 1, Tail: frame.Tail{Token: mem.Key().Token, Length: size}}, nil)
	driveUntilStalled(n)
	for range 100 {
		r.send(frame.Header{Kind: frame.Ping}, nil)
		r.readKind(frame.Pong)
	}
	require.Len(t, second.readMove(1), size)
}

// TestGoawayWithBulk checks that the reason of the peer's Goaway, and the messages that it has not
// taken, are received although its second connection ends first.
func TestGoawayWithBulk(t *testing.T) {
	for range 5 {
		n := open(t, "tcp://127.0.0.1:0", tcp.Options{Unassisted: true}, na.Config{}, 1)
		stop := startDriver(n)
		r := rawJoin(t, n, greeting())
		second := r.dialBulk(n)
		second.readHello()
		require.Eventually(t, func() bool { return n.ctx().Stats().BulkFlows == 1 }, patience, time.Millisecond)
		stop()
		r.send(frame.Header{Kind: frame.Unexpected, Tag: 5}, []byte("here I am"))
		_, from, _ := recvUnexpected(t, n.ctx(), n)
		stop = startDriver(n)
		other := rawJoin(t, n, greeting()) // so that the first connection is not the one that is looked at first
		other.send(frame.Header{Kind: frame.Ping}, nil)
		other.readKind(frame.Pong)
		stop()
		o, end := newOp(n.ctx())
		require.NoError(t, n.ctx().RecvExpected(o, from, 1, make([]byte, 8)))
		require.NoError(t, second.nc.Close())
		r.write(frame.Bye{Code: na.ErrClosed, Next: 7, Text: "enough"}.Frame())
		require.NoError(t, r.nc.Close())
		driveUntil(t, "end of the receive", end.done, n)
		requireCode(t, na.ErrPeerLost, end.Err)
		require.ErrorContains(t, end.Err, "enough")
		require.EqualValues(t, 7, end.ID)
	}
}
