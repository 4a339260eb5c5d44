package na

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// TestMovesTakeTurns checks that as many transfers are in flight as the limit allows; each that
// ends lets one begin, without waiting for anything else.
func TestMovesTakeTurns(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(5)
	const n = maxInFlight + 5
	var all []*result
	for range n {
		all = append(all, s.get(s.mem(1)))
	}
	var ids []uint64
	for _, p := range s.drain(l) {
		require.Equal(t, frame.Get, p.Kind)
		ids = append(ids, p.Op)
	}
	require.Len(t, ids, maxInFlight)
	for i := range n {
		require.NoError(t, s.deliverPiece(l, frame.Header{Kind: frame.Data, Flags: frame.FlagAnswer, Op: ids[i]}, []byte("x")))
		s.e.Lock()
		s.e.pending, l.pending = nil, false
		require.NoError(t, l.Deliver(&frame.Header{Kind: frame.Done, Op: ids[i], Credit: l.credits}, nil))
		pending := len(s.e.pending) > 0
		s.e.Unlock()
		if i+maxInFlight < n {
			require.True(t, pending, "the carrier is not notified that the next may begin")
			next := s.drain(l)
			require.Equal(t, []string{"GET"}, kinds(next))
			ids = append(ids, next[0].Op)
		}
	}
	s.trigger()
	for i, r := range all {
		require.Equal(t, 1, r.ended, "get %d", i)
		require.NoError(t, r.Err)
		require.EqualValues(t, 1, r.N)
	}
	require.Zero(t, s.nctx.Stats().Outstanding)
}

// TestPieces checks that bulk data is sent in pieces, those of several transfers in turn, and each
// byte once.
func TestPieces(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(5)
	sizes := []int{0, 1, carrier.PieceSize, carrier.PieceSize + 1, 3*carrier.PieceSize - 1}
	var ops []*result
	var want [][]byte
	for i, n := range sizes {
		m := s.mem(n)
		for j := range m.Segments()[0] {
			m.Segments()[0][j] = byte(i + j*7 + j>>10)
		}
		want = append(want, bytes.Clone(m.Segments()[0]))
		ops = append(ops, s.put(m))
	}
	got := map[uint64][]byte{}
	var order []uint64
	for _, p := range s.drain(l) {
		if p.Kind == frame.Put {
			require.EqualValues(t, sizes[len(order)], p.Tail.Length)
			order = append(order, p.Op)
			continue
		}
		require.Equal(t, frame.Data, p.Kind)
		require.Contains(t, order, p.Op, "data before its PUT")
		require.LessOrEqual(t, p.Payload(), carrier.PieceSize)
		require.EqualValues(t, len(got[p.Op]), p.Tag, "the offset of a piece")
		got[p.Op] = append(got[p.Op], p.payload...)
	}
	require.Len(t, order, len(sizes))
	for i, id := range order {
		require.True(t, bytes.Equal(want[i], got[id]), "transfer %d of %d bytes", i, sizes[i])
		require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Done, Op: id}, nil))
	}
	s.trigger()
	for i, r := range ops {
		require.NoError(t, r.Err)
		require.EqualValues(t, sizes[i], r.N)
	}
	require.Zero(t, l.flows[carrier.Messages].sources.len())
}

// TestServeRevoked takes memory back before, between and while the pieces of a get from it are
// sent.
func TestServeRevoked(t *testing.T) {
	for _, before := range []int{0, 1, 2} {
		s := newScript(t, Config{})
		l := s.connect(5)
		m, err := s.dom.cls.Register(ReadOnly, bytes.Repeat([]byte("x"), 2*carrier.PieceSize))
		require.NoError(t, err)
		h := frame.Header{Kind: frame.Get, Op: 9, Tail: frame.Tail{Token: m.Key().Token, Length: 2 * carrier.PieceSize}}
		require.NoError(t, s.deliver(l, h, nil))
		var frames []pulledFrame
		for range before {
			p, ok := s.pull(l)
			require.True(t, ok)
			s.sent(l, &p)
			frames = append(frames, p)
		}
		gone := s.op(func(op *Op) error { return s.nctx.Deregister(op, m) })
		s.trigger()
		require.Equal(t, 1, gone.ended, "the memory is not used now")
		frames = append(frames, s.drain(l)...)
		last := frames[len(frames)-1]
		require.Equal(t, frame.Done, last.Kind)
		require.EqualValues(t, 9, last.Op)
		if before < 2 {
			require.EqualValues(t, ErrRevoked, last.Tag)
			require.NotContains(t, kinds(frames[before+1:]), "DATA", "pieces sent although the memory is no longer registered")
		} else {
			require.EqualValues(t, OK, last.Tag)
		}
		require.Empty(t, l.served)
		require.Zero(t, l.flows[carrier.Messages].sources.len())
	}
}

// TestServeHeld checks that Deregister waits for a piece that the carrier holds while the memory is
// taken back, and for nothing else.
func TestServeHeld(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(5)
	m, err := s.dom.cls.Register(ReadOnly, make([]byte, 10))
	require.NoError(t, err)
	h := frame.Header{Kind: frame.Get, Op: 9, Tail: frame.Tail{Token: m.Key().Token, Length: 10}}
	require.NoError(t, s.deliver(l, h, nil))
	p, ok := s.pull(l)
	require.True(t, ok)
	require.True(t, p.view.Borrow())
	gone := s.op(func(op *Op) error { return s.nctx.Deregister(op, m) })
	s.trigger()
	require.Zero(t, gone.ended)
	p.view.Return()
	s.trigger()
	require.Equal(t, 1, gone.ended)
	require.False(t, p.view.Borrow(), "the rest of the piece")
	s.e.Lock()
	l.Sent(p.view)
	s.e.Unlock()
	all := s.drain(l)
	require.Equal(t, []string{"DONE"}, kinds(all))
	require.EqualValues(t, ErrRevoked, all[0].Tag)
}

// TestCancelHeld checks that the callback of a canceled transfer waits for the piece that the
// carrier holds, and for nothing else, and so does Deregister.
func TestCancelHeld(t *testing.T) {
	t.Parallel()
	s := newScript(t, Config{})
	l := s.connect(5)
	local, err := s.dom.cls.Register(ReadOnly, make([]byte, 10))
	require.NoError(t, err)
	put := s.put(local)
	p, ok := s.pull(l)
	require.True(t, ok)
	require.Equal(t, frame.Put, p.Kind)
	p, ok = s.pull(l)
	require.True(t, ok)
	require.True(t, p.view.Borrow())
	put.Cancel()
	gone := s.op(func(op *Op) error { return s.nctx.Deregister(op, local) })
	s.trigger()
	require.Zero(t, s.ends-1, "callbacks that ran while the memory was lent")
	p.view.Return()
	require.Equal(t, 2, s.trigger())
	require.ErrorIs(t, put.Err, ErrCanceled)
	require.Equal(t, 1, gone.ended)
	require.False(t, p.view.Borrow())
	require.Equal(t, []string{"CANCEL"}, kinds(s.drain(l)), "a courtesy")
	s.e.Lock()
	l.Sent(p.view)
	s.e.Unlock()
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Done, Op: p.Op}, nil), "a late answer")
	require.EqualValues(t, 1, s.nctx.Stats().LateDropped)
}

// TestLocalDeregistered checks that memory of a transfer of this process that is deregistered stays
// usable for it, and its session.
func TestLocalDeregistered(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(5)
	local, err := s.dom.cls.Register(ReadWrite, bytes.Repeat([]byte("x"), 10))
	require.NoError(t, err)
	put, get := s.put(local), s.get(local)
	gone := s.op(func(op *Op) error { return s.nctx.Deregister(op, local) })
	var id uint64
	for _, p := range s.drain(l) {
		switch p.Kind {
		case frame.Data:
			require.Equal(t, "xxxxxxxxxx", string(p.payload))
			require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Done, Op: p.Op}, nil))
		case frame.Get:
			id = p.Op
		}
	}
	s.trigger()
	require.NoError(t, put.Err)
	require.Equal(t, 1, put.ended)
	require.Zero(t, gone.ended)
	require.NoError(t, s.deliverPiece(l, frame.Header{Kind: frame.Data, Flags: frame.FlagAnswer, Op: id}, []byte("0123456789")))
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Done, Op: id}, nil))
	s.trigger()
	require.NoError(t, get.Err)
	require.Equal(t, 1, gone.ended)
	require.Equal(t, "0123456789", string(local.Segments()[0]))
	require.True(t, l.Up())
}

// TestLateData cancels while data arrives: what arrives later is dropped, also for the next life of
// the operation.
func TestLateData(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(5)
	m := s.mem(10)
	r := s.get(m)
	id := s.drain(l)[0].Op
	require.NoError(t, s.deliverPiece(l, frame.Header{Kind: frame.Data, Flags: frame.FlagAnswer, Op: id}, []byte("01234")))
	r.Cancel()
	s.trigger()
	require.ErrorIs(t, r.Err, ErrCanceled)
	require.EqualValues(t, 5, r.N)
	require.Equal(t, []string{"CANCEL"}, kinds(s.drain(l)))
	copy(m.Segments()[0], "##########")
	require.NoError(t, s.nctx.Get(r.Op, m, 0, s.addr(), Key{Len: 10, Access: ReadOnly}, 0, 10))
	again := s.drain(l)[0].Op
	require.NotEqual(t, id, again)
	require.NoError(t, s.deliverPiece(l, frame.Header{Kind: frame.Data, Flags: frame.FlagAnswer, Op: id, Tag: 5}, []byte("56789")))
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Done, Op: id}, nil))
	require.Equal(t, "##########", string(m.Segments()[0]))
	require.Zero(t, s.trigger())
	require.EqualValues(t, 2, s.nctx.Stats().LateDropped)
	require.NoError(t, s.deliverPiece(l, frame.Header{Kind: frame.Data, Flags: frame.FlagAnswer, Op: again}, []byte("abcdefghij")))
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Done, Op: again}, nil))
	s.trigger()
	require.NoError(t, r.Err)
	require.Equal(t, "abcdefghij", string(m.Segments()[0]))
}

// TestPutRefused checks that the owner refuses a put that arrives in pieces once, and drops the
// rest.
func TestPutRefused(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(5)
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Put, Op: 5, Tail: frame.Tail{Length: 20}}, nil))
	h := frame.Header{Kind: frame.Data, Op: 5}
	require.NoError(t, s.deliverPiece(l, h, make([]byte, 10)))
	h.Tag = 10
	require.NoError(t, s.deliverPiece(l, h, make([]byte, 10)))
	all := s.drain(l)
	require.Equal(t, []string{"DONE"}, kinds(all))
	require.EqualValues(t, ErrRevoked, all[0].Tag)

	// Taken back between two pieces.
	buf := bytes.Repeat([]byte("#"), 20)
	m, err := s.dom.cls.Register(WriteOnly, buf)
	require.NoError(t, err)
	h = frame.Header{Kind: frame.Put, Op: 6, Tail: frame.Tail{Token: m.Key().Token, Length: 20}}
	require.NoError(t, s.deliver(l, h, nil))
	h = frame.Header{Kind: frame.Data, Op: 6}
	require.NoError(t, s.deliverPiece(l, h, bytes.Repeat([]byte("x"), 10)))
	gone := s.op(func(op *Op) error { return s.nctx.Deregister(op, m) })
	s.trigger()
	require.Equal(t, 1, gone.ended)
	h.Tag = 10
	require.NoError(t, s.deliverPiece(l, h, bytes.Repeat([]byte("x"), 10)))
	require.Equal(t, "xxxxxxxxxx##########", string(buf))
	all = s.drain(l)
	require.Equal(t, []string{"DONE"}, kinds(all))
	require.EqualValues(t, ErrRevoked, all[0].Tag)
	require.Empty(t, l.sinks)
}

// TestServingIsBounded checks that a peer that requests more than may be served at a time gets
// ErrAgain.
func TestServingIsBounded(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(5)
	m, err := s.dom.cls.Register(ReadWrite, make([]byte, 20))
	require.NoError(t, err)
	tail := frame.Tail{Token: m.Key().Token, Length: 20}
	for i := range uint64(maxServing + 3) {
		require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Get, Op: i, Tail: tail}, nil))
		require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Put, Op: maxServing*2 + i, Tail: tail}, nil))
	}
	require.Len(t, l.served, maxServing)
	require.Len(t, l.sinks, maxServing)
	refused := 0
	for _, p := range s.drain(l) {
		if Code(p.Tag) == ErrAgain && p.Kind == frame.Done {
			refused++
		}
	}
	require.Equal(t, 6, refused)
	require.Empty(t, l.served)
	for i := range uint64(maxServing) { // the peer gives them up
		require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Cancel, Op: maxServing*2 + i}, nil))
	}
	require.Empty(t, l.sinks)
}

// TestControlIsBounded checks that a peer that causes answers and does not read them is cut before
// the answers accumulate. That may happen inside any call.
func TestControlIsBounded(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(5)
	r := s.expect(3, nil)
	n := 0
	for !l.Down() {
		require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Get, Op: uint64(n), Tail: frame.Tail{Length: 1}}, nil))
		n++
		require.LessOrEqual(t, n, maxControl+1)
	}
	s.trigger()
	require.ErrorIs(t, r.Err, ErrPeerLost)

	for _, spare := range []int{0, 1, 2} { // the cancel of a transfer is the frame too many, or nearly
		s := newScript(t, Config{})
		l := s.connect(5)
		get := s.get(s.mem(10))
		s.drain(l)
		waits, sends := s.expect(3, nil), s.send("x")
		for range maxControl - spare {
			s.nctx.Upper().GiveBack(s.addr(), Key{})
		}
		require.True(t, l.Up())
		get.Cancel()
		get.Cancel()
		s.nctx.Upper().GiveBack(s.addr(), Key{})
		s.trigger()
		require.Equal(t, 1, get.ended)
		require.ErrorIs(t, get.Err, ErrCanceled)
		require.Equal(t, spare < 2, l.Down(), "%d to spare", spare)
		if l.Down() {
			require.ErrorIs(t, waits.Err, ErrPeerLost)
			require.ErrorIs(t, sends.Err, ErrPeerLost)
			require.Equal(t, NotRun, sends.Fate)
		}
	}
}

func TestLeases(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(5)
	lease := func(tag Tag) (r *result, key Key) {
		r = s.op(func(op *Op) error {
			m, err := s.nctx.Upper().Lease(op, s.addr(), tag, []byte("lent"))
			if m != nil {
				key = m.Key()
			}
			return err
		})
		return r, key
	}
	first, key := lease(1)
	second, _ := lease(1)
	s.trigger()
	require.ErrorIs(t, second.Err, ErrBusy)
	require.Zero(t, first.ended)

	// Another session names it.
	g := peerGreeting(5)
	g.Incarnation, g.Listen = [16]byte{9}, ""
	s.e.Lock()
	other, err := s.e.admitHello(scriptCarrier{s}, "conn", &g, false)
	s.e.Unlock()
	require.NoError(t, err)
	tail := frame.Tail{Token: key.Token, Length: 4}
	s.drain(other)
	require.NoError(t, s.deliver(other, frame.Header{Kind: frame.Get, Op: 1, Tail: tail}, nil))
	all := s.drain(other)
	require.Equal(t, []string{"DONE"}, kinds(all))
	require.EqualValues(t, ErrPermission, all[0].Tag)
	require.NoError(t, s.deliver(other, frame.Header{Kind: frame.GiveBack, Tail: tail}, nil))
	require.NoError(t, s.deliver(other, frame.Header{Kind: frame.Dropped, Tag: 1}, nil))
	require.Zero(t, s.trigger(), "another session has ended the lease")

	// The message that is sent with it requests a notification when it is dropped; others do not.
	sent := s.op(func(op *Op) error { return s.nctx.SendExpected(op, s.addr(), 1, []byte("key")) })
	plain := s.op(func(op *Op) error { return s.nctx.SendExpected(op, s.addr(), 2, []byte("key")) })
	all = s.drain(l)
	require.Equal(t, []string{"EXPECTED", "EXPECTED"}, kinds(all))
	require.NotZero(t, all[0].Flags&frame.FlagTell)
	require.Zero(t, all[1].Flags&frame.FlagTell)
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Get, Op: 1, Tail: tail}, nil))
	all = s.drain(l)
	require.Equal(t, []string{"DATA", "DONE"}, kinds(all))
	require.Equal(t, "lent", string(all[0].payload))
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Dropped, Tag: 1}, nil))
	s.trigger()
	require.NoError(t, sent.Err)
	require.NoError(t, plain.Err)
	require.ErrorIs(t, first.Err, ErrNoEntry)

	third, key := lease(1) // the tag is free again
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.GiveBack, Tail: frame.Tail{Token: key.Token}}, nil))
	s.trigger()
	require.NoError(t, third.Err)
	require.Zero(t, s.dom.cls.Regions())

	for i := range Tag(maxLeases) {
		lease(100 + i)
	}
	more, _ := lease(99)
	s.trigger()
	require.ErrorIs(t, more.Err, ErrAgain)
	require.EqualValues(t, maxLeases, s.dom.cls.Regions())

	// And the answer to a message that meets no receive.
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Expected, Tag: 77, Flags: frame.FlagTell}, nil))
	all = s.drain(l)
	require.Equal(t, []string{"DROPPED"}, kinds(all))
	require.EqualValues(t, 77, all[0].Tag)

	// Nor does one that is too long for its receive report what it lends.
	long := s.expect(78, make([]byte, 1))
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Expected, Tag: 78, Flags: frame.FlagTell}, []byte("key")))
	s.trigger()
	require.ErrorIs(t, long.Err, ErrOverflow)
	all = s.drain(l)
	require.Equal(t, []string{"DROPPED"}, kinds(all))
	require.EqualValues(t, 78, all[0].Tag)
}

func TestMatch(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(5)
	buf := make([]byte, 5)
	r, twice := s.expect(3, buf), s.expect(3, buf)
	s.trigger()
	require.ErrorIs(t, twice.Err, ErrBusy)
	require.Zero(t, r.ended)
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Expected, Tag: 4}, []byte("other")))
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Expected, Tag: 3}, []byte("hello")))
	s.trigger()
	require.NoError(t, r.Err)
	require.Equal(t, "hello", string(buf))
	require.Equal(t, s.addr(), r.Addr.Named())
	require.EqualValues(t, 3, r.Tag)
	r = s.expect(3, buf[:4])
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Expected, Tag: 3}, []byte("world")))
	s.trigger()
	require.ErrorIs(t, r.Err, ErrOverflow)
	require.Equal(t, Ran, r.Fate)
	require.Equal(t, "hello", string(buf))
	require.Zero(t, l.posted.n)
	require.EqualValues(t, 1, s.nctx.Stats().LateDropped)
}

// TestRecordsAreRecycled checks that every record that an operation used is used again, and none is
// used by two.
func TestRecordsAreRecycled(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(5)
	for range 100 {
		r := s.expect(3, make([]byte, 1))
		require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Expected, Tag: 3}, nil))
		s.trigger()
		require.NoError(t, r.Err)
		p := s.put(s.mem(1))
		id := s.drain(l)[0].Op
		require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Done, Op: id}, nil))
		s.trigger()
		require.NoError(t, p.Err)
	}
	require.Empty(t, s.e.ops)
	require.LessOrEqual(t, len(s.e.exts.spare), 2, "of puts")
	require.LessOrEqual(t, len(s.e.sources.spare), 2, "records of moves")
	require.LessOrEqual(t, len(s.e.inFlight.slots), 2, "identities")
}
