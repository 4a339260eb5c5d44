package tcp_test

import (
	"bytes"
	"crypto/rand"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

const laneSize = 1 << 20 // more than enough to want a lane

// laneGreeting is a HELLO of a dialler that would dial a lane too.
func laneGreeting() frame.Greeting {
	g := greeting()
	g.Features = frame.FeatureLane
	return g
}

// dialLane makes the lane of the session of r, which dialled n.
func (r *raw) dialLane(n *node) *raw {
	r.t.Helper()
	lane := rawDial(r.t, n)
	lane.flags = frame.FlagLane
	g := r.mine
	g.Lane = r.peer.Lane
	lane.hello(g)
	lane.limit = 1 // what it says of credit is old, and means nothing
	return lane
}

// readMove reads the data of a get up to its GETDONE, all of it with the flags of the connection.
func (r *raw) readMove(id uint64) (data []byte) {
	r.t.Helper()
	for {
		h, payload := r.read()
		require.Equal(r.t, id, h.Op, h.String())
		require.Equal(r.t, r.flags, h.Flags&frame.FlagLane, h.String())
		if h.Kind == frame.GetDone {
			require.Zero(r.t, h.Tag)
			return data
		}
		require.Equal(r.t, frame.GetData, h.Kind)
		require.Equal(r.t, len(data), int(h.Tag))
		data = append(data, payload...)
	}
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

// TestLaneOfDialler: a peer that dialled is asked for a lane when the first large get begins, and what begins once the
// lane is up goes over it, there and back.
func TestLaneOfDialler(t *testing.T) {
	n := open(t, "tcp://127.0.0.1:0", tcp.Options{}, na.Config{}, 1)
	want := random(laneSize)
	owned := bytes.Clone(want) // the node's own goroutine reads and writes it
	mem, err := n.cls.Register(na.ReadWrite, owned)
	require.NoError(t, err)
	r := rawJoin(t, n, laneGreeting())
	require.True(t, r.peer.HasLane())
	tail := frame.Tail{Token: mem.Key().Token, Length: laneSize}

	r.send(frame.Header{Kind: frame.Get, Op: 1, Tail: tail}, nil)
	r.readKind(frame.Lane)
	require.Equal(t, want, r.readMove(1), "what began before stays")

	lane := r.dialLane(n)
	lane.readHello()
	require.Equal(t, r.peer.Lane, lane.peer.Lane)
	r.send(frame.Header{Kind: frame.Get, Op: 2, Tail: tail}, nil)
	require.Equal(t, want, lane.readMove(2))
	small := tail
	small.Length = 100
	r.send(frame.Header{Kind: frame.Get, Op: 3, Tail: small}, nil)
	require.Equal(t, want[:100], r.readMove(3), "what is small does not need the lane")

	theirs := random(laneSize)
	lane.sendFront(frame.Header{Kind: frame.Put, Op: 4, Tail: tail}, laneSize)
	lane.write(theirs)
	h, _ := r.readKind(frame.PutDone)
	require.Equal(t, uint64(4), h.Op)
	require.Zero(t, h.Tag)
	_ = n.ctx().Stats() // takes the lock under which the node finishes puts, for the race detector
	require.True(t, bytes.Equal(theirs, owned), "the memory holds what was put")
	_ = n.ctx().Stats()

	// A put that is canceled in the middle leaves nothing behind.
	lane.sendFront(frame.Header{Kind: frame.Put, Op: 5, Tail: tail}, 1000)
	lane.write(make([]byte, 1000))
	lane.send(frame.Header{Kind: frame.Cancel, Op: 5}, nil)
	lane.sendFront(frame.Header{Kind: frame.Put, Op: 6, Tail: small}, 100)
	lane.write(theirs[:100])
	h, _ = r.readKind(frame.PutDone)
	require.Equal(t, uint64(6), h.Op)

	// The end of the lane is the end of the session.
	require.NoError(t, lane.nc.Close())
	got, _ := r.readEnd()
	require.Equal(t, na.ErrPeerLost, got)
	require.Equal(t, int64(1), n.ctx().Stats().PeersLost)
}

// TestLaneOfListener: a peer that listens is dialled again when the first large put begins; what begins then goes over
// the lane, and a put that is canceled is canceled there, behind its data.
func TestLaneOfListener(t *testing.T) {
	n := open(t, "tcp://", tcp.Options{}, na.Config{}, 1)
	l := rawListen(t)
	name := [16]byte{1, 2, 3}
	g := greeting()
	g.Lane = name
	r, to := joinAs(t, n, l, g), l.addr()
	data := random(laneSize)
	mem, err := n.cls.NewMem(data)
	require.NoError(t, err)
	put := func(what string, from *raw) {
		o, end := op(n.ctx())
		require.NoError(t, n.ctx().Put(o, mem, 0, to, someKey(laneSize), 0, laneSize))
		var got []byte
		var h frame.Header
		for len(got) < laneSize {
			var payload []byte
			h, payload = from.read()
			require.Equal(t, frame.Put, h.Kind, what)
			require.Equal(t, from.flags, h.Flags&frame.FlagLane, what)
			got = append(got, payload...)
		}
		require.Equal(t, data, got, what)
		r.send(frame.Header{Kind: frame.PutDone, Op: h.Op}, nil)
		ok(t, what, end, n)
	}
	defer driven(n)()
	put("before the lane", r)
	lane := newRaw(t, l.accept())
	lane.flags = frame.FlagLane
	lane.readHello()
	require.Equal(t, name, lane.peer.Lane)
	require.Equal(t, r.peer.Incarnation, lane.peer.Incarnation)
	g.Target = lane.peer.Context
	lane.hello(g)
	require.Eventually(t, func() bool { return n.ctx().Stats().Lanes == 1 }, patience, time.Millisecond)
	put("after the lane", lane)

	o, end := op(n.ctx())
	require.NoError(t, n.ctx().Put(o, mem, 0, to, someKey(laneSize), 0, laneSize))
	h, _ := lane.read()
	require.Equal(t, frame.Put, h.Kind)
	o.Cancel()
	for h.Kind != frame.Cancel {
		h, _ = lane.read()
	}
	await(t, "cancel", end.done, n)
	require.Zero(t, n.ctx().Stats().PeersLost)
}

// TestLaneRefused: a session whose lane is refused goes on without one.
func TestLaneRefused(t *testing.T) {
	n := open(t, "tcp://", tcp.Options{}, na.Config{}, 1)
	l := rawListen(t)
	g := greeting()
	g.Lane = [16]byte{1}
	r, to := joinAs(t, n, l, g), l.addr()
	mem, err := n.cls.NewMem(make([]byte, laneSize))
	require.NoError(t, err)
	defer driven(n)()
	for i := range 3 {
		o, end := op(n.ctx())
		require.NoError(t, n.ctx().Put(o, mem, 0, to, someKey(laneSize), 0, laneSize))
		h, payload := r.read()
		for got := len(payload); got < laneSize; got += len(payload) {
			h, payload = r.read()
		}
		if i == 0 {
			lane := newRaw(t, l.accept())
			lane.readHello()
			goaway := frame.Header{Kind: frame.Goaway, Tag: uint64(na.ErrNoEntry)}
			lane.write(goaway.Append(nil, []byte("no")))
			lane.readEnd()
		}
		r.send(frame.Header{Kind: frame.PutDone, Op: h.Op}, nil)
		ok(t, "put", end, n)
	}
	require.NoError(t, l.l.(*net.TCPListener).SetDeadline(time.Now().Add(20*time.Millisecond)))
	_, err = l.l.Accept()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "it is not tried again")
	require.Zero(t, n.ctx().Stats().PeersLost)
	require.Zero(t, n.ctx().Stats().Lanes)
}

// TestLaneOfStranger: nobody gets at a session by a lane that it did not offer, that is in use, or that another process
// was offered.
func TestLaneOfStranger(t *testing.T) {
	n := open(t, "tcp://127.0.0.1:0", tcp.Options{}, na.Config{}, 1)
	r := rawJoin(t, n, laneGreeting())
	refused := func(what string, change func(g *frame.Greeting)) {
		lane := rawDial(t, n)
		g := r.mine
		g.Lane = r.peer.Lane
		change(&g)
		lane.hello(g)
		got, text := lane.readEnd()
		require.Equal(t, na.ErrNoEntry, got, what)
		require.Contains(t, text, "no session waits for this lane", what)
	}
	refused("guessed", func(g *frame.Greeting) { g.Lane[3]++ })
	refused("another process", func(g *frame.Greeting) { g.Incarnation[3]++ })
	lane := r.dialLane(n)
	lane.readHello()
	refused("in use", func(*frame.Greeting) {})
	require.False(t, rawJoin(t, n, greeting()).peer.HasLane(), "who would not dial a lane is offered none")

	r.send(frame.Header{Kind: frame.Ping}, nil)
	r.readKind(frame.Pong)
	lane.send(frame.Header{Kind: frame.Ping}, nil)
	got, text := r.readEnd()
	require.Equal(t, na.ErrProtocol, got)
	require.Contains(t, text, "PING frame on the lane")
}

// TestMessagesPassBulk: a peer that does not read the lane is sent messages all the same.
func TestMessagesPassBulk(t *testing.T) {
	n := open(t, "tcp://127.0.0.1:0", tcp.Options{}, na.Config{PeerTimeout: time.Minute}, 1)
	const size = 32 << 20
	mem, err := n.cls.Register(na.ReadOnly, make([]byte, size))
	require.NoError(t, err)
	r := rawJoin(t, n, laneGreeting())
	lane := r.dialLane(n)
	lane.readHello()
	r.send(frame.Header{Kind: frame.Get, Op: 1, Tail: frame.Tail{Token: mem.Key().Token, Length: size}}, nil)
	quiet(n)
	for range 100 {
		r.send(frame.Header{Kind: frame.Ping}, nil)
		r.readKind(frame.Pong)
	}
	require.Len(t, lane.readMove(1), size)
}
