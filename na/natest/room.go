package natest

import (
	"bytes"
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
)

var roomRules = []rule{
	{name: "RoomIsGranted", engine: true, check: roomIsGranted,
		why: "memory for long messages is reserved for peers that send some: an idle one costs no more than its envelopes"},
	{name: "RoomSizes", check: roomSizes,
		why: "messages around every size class arrive whole, in their order, and a receive takes no more than its length"},
	{name: "RoomComesBack", engine: true, check: roomComesBack,
		why: "room is free when the bytes of a message are, not before, and once: else memory is exceeded, or room is lost for good"},
	{name: "RoomOfUnsentMessages", engine: true, check: roomOfUnsentMessages,
		why: "a long message that is canceled, refused or withdrawn gives its envelope and its room back"},
	{name: "RoomHeadToHead", check: roomHeadToHead,
		why: "as many messages as are guaranteed leave without the target's help, as many of them long as there is room for"},
	{name: "RoomBudget", engine: true, check: roomBudget,
		why: "room of all peers is a quarter of the budget at the most, and is returned with the sessions"},
	{name: "RoomOfCanceledReceive", engine: true, check: roomCancelsReceive,
		why: "a receive that is canceled while its long message arrives ends at once, and the message affects nothing else"},
}

// sizesAround returns lengths around each size class and just beyond an envelope of 4 KiB.
func sizesAround() (ns []int) {
	ns = append(ns, 4097)
	for class := 1; class <= 3; class++ {
		n := na.RoomBytes(class)
		ns = append(ns, n-na.RoomHead, n-1, n, n+1)
	}
	return ns[:len(ns)-1]
}

// grant makes t grant room to a, and waits until a can claim room for a message of n bytes.
func (b *bed) grant(a, t *side, toA na.Addr, n int) {
	b.Helper()
	b.grantTo(a, t.Self(), t, toA, n)
}

// grantTo is like grant, using toT as the address by which a reaches t.
func (b *bed) grantTo(a *side, toT na.Addr, t *side, toA na.Addr, n int) {
	b.Helper()
	t.Upper().GrantRoom(toA, n)
	b.until("the peer has room", func() bool {
		bound, ok := a.Upper().ClaimRoom(toT, n)
		if ok {
			a.Upper().ReturnRoom(bound, n)
		}
		return ok
	})
}

// roomFor returns the number of messages of n bytes for which s can claim room at the peer. It
// releases the claims.
func (s *side) roomFor(to na.Addr, n int) (fit int) {
	var bound na.Addr
	for ok := true; ok; {
		var at na.Addr
		if at, ok = s.Upper().ClaimRoom(to, n); ok {
			bound = at
			fit++
		}
	}
	for range fit {
		s.Upper().ReturnRoom(bound, n)
	}
	return fit
}

// sendLong claims room for data, which must be available, and starts sending it as an unexpected
// message.
func (s *side) sendLong(to na.Addr, tag na.Tag, data []byte) *call {
	s.b.Helper()
	bound, ok := s.Upper().ClaimRoom(to, len(data))
	require.True(s.b, ok, "room for %d bytes", len(data))
	return s.send(bound, tag, data)
}

// recvLong posts a receive with a buffer of n bytes for a message of up to most bytes.
func (s *side) recvLong(from na.Addr, tag na.Tag, n, most int) *call {
	s.b.Helper()
	c := s.call(fmt.Sprintf("receive expected %d of %d bytes", tag, most))
	c.buffer(n)
	c.most = most
	return c.start(func(op *na.Op) error { return s.RecvExpectedLong(op, from, tag, c.buf, most) })
}

func (s *side) sendExpectedLong(to na.Addr, tag na.Tag, data []byte, most int) *call {
	s.b.Helper()
	c := s.call("send expected")
	c.sent = append([]byte{}, data...)
	return c.start(func(op *na.Op) error { return s.SendExpectedLong(op, to, tag, c.sent, most) })
}

// roomOf returns the statistics of t's only session, which include its room.
func (b *bed) roomOf(t *side) na.PeerStats {
	b.Helper()
	peers := t.Peers()
	require.Len(b, peers, 1)
	return peers[0]
}

func roomIsGranted(b *bed) {
	const n = 40 << 10
	a, t := b.pair(na.Config{})
	_, ok := a.Upper().ClaimRoom(t.Self(), n)
	require.False(b, ok, "room at a peer without a session")
	toA, _ := b.connect(a, t)
	idle := t.Stats().Reserved
	_, ok = a.Upper().ClaimRoom(t.Self(), n)
	require.False(b, ok, "room that was not granted")
	require.Zero(b, b.roomOf(t).Room)

	b.grant(a, t, toA, n)
	first := b.roomOf(t)
	require.Positive(b, first.Room)
	require.Equal(b, idle+first.Room, t.Stats().Reserved, "room is reserved beside the envelopes")
	require.Equal(b, 4, a.roomFor(t.Self(), n), "the first grant is for four messages, so that the return of one is announced behind a response")
	require.Zero(b, t.roomFor(toA, n), "room that the other side has granted")
	for range 20 {
		b.grant(a, t, toA, n)
	}
	b.drain(a, t)
	require.Greater(b, b.roomOf(t).Room, first.Room, "more is granted when more is needed")
	require.LessOrEqual(b, b.roomOf(t).Room, int64(64*na.MaxRoom), "room of one peer")

	for _, bad := range []int{0, 1, a.Limits().MaxUnexpected, na.MaxBody + 1} {
		_, ok = a.Upper().ClaimRoom(t.Self(), bad)
		require.False(b, ok, "room for %d bytes", bad)
	}
	a.send(b.roomOf(a).Addr, 1, make([]byte, n)).requireNotRun(na.ErrMsgSize) // no claim
	a.call("send too long").requireRefused(na.ErrMsgSize, func(op *na.Op) error {
		return a.SendUnexpected(op, b.roomOf(a).Addr, 0, make([]byte, na.MaxRoom+1))
	})
}

func roomSizes(b *bed) {
	a, t := b.pair(na.Config{})
	toA, toT := b.connect(a, t)
	b.grant(a, t, toA, na.MaxRoom)
	b.grant(a, t, toA, na.MaxRoom)
	for i, n := range sizesAround() {
		want := pattern(i, n)
		tag := na.Tag(3 * i)
		cs := []*call{a.send(toT, tag, pattern(i, 100)), a.sendLong(t.Self(), tag+1, want), a.send(toT, tag+2, pattern(i, 4096))}
		for k, want := range [][]byte{pattern(i, 100), want, pattern(i, 4096)} {
			got := t.next()
			require.Equal(b, tag+na.Tag(k), got.tag, "order")
			require.True(b, bytes.Equal(want, got.data), "message of %d bytes: got %d other ones", n, len(got.data))
		}
		for _, c := range cs {
			c.requireOK()
		}
		b.drain(a, t)
	}
	for i, n := range sizesAround() {
		want := pattern(i, n)
		tag := na.Tag(100 + 10*i)
		short, exact, roomy := a.recvLong(toT, tag, 10, n), a.recvLong(toT, tag+1, n, n), a.recvLong(toT, tag+2, 100, na.MaxRoom)
		less := a.recvLong(toT, tag+3, 10, n-1)
		plain := a.recvExpected(toT, tag+4, 100)
		for k := range na.Tag(5) {
			t.sendExpectedLong(toA, tag+k, want, na.MaxRoom).requireOK()
		}
		for _, c := range []*call{short, roomy} {
			r := c.requireOK()
			require.Equal(b, int64(n), r.N)
			require.True(b, bytes.Equal(want, r.Envelope.Data), "message of %d bytes arrives damaged", n)
			require.True(b, bytes.Equal(fill(len(c.buf), guard), c.buf), "the buffer beside an envelope was written")
			c.freeEnvelope()
		}
		require.Nil(b, exact.requireOK().Envelope, "a message that fits the buffer")
		require.True(b, bytes.Equal(want, exact.buf), "message of %d bytes arrives damaged", n)
		less.requireFails(na.ErrOverflow)
		plain.requireFails(na.ErrOverflow)
	}
	t.call("send too long").requireRefused(na.ErrMsgSize, func(op *na.Op) error {
		return t.SendExpectedLong(op, toA, 0, make([]byte, na.MaxRoom+1), 2*na.MaxRoom)
	})
	t.call("send longer than the receive").requireRefused(na.ErrMsgSize, func(op *na.Op) error {
		return t.SendExpectedLong(op, toA, 0, make([]byte, 20000), 19999)
	})
}

func roomComesBack(b *bed) {
	b.rounds([]int{5000, 30 << 10, na.MaxRoom}, func(n int) {
		a, t := b.pair(na.Config{})
		toA, _ := b.connect(a, t)
		b.grant(a, t, toA, n)
		b.drain(a, t)
		fit := a.roomFor(t.Self(), n)
		each := b.roomOf(t).Room / int64(fit)
		for round := range 3 {
			var kept []*na.Envelope
			for i := range fit {
				a.sendLong(t.Self(), na.Tag(i), pattern(i, n)).requireOK()
			}
			require.Zero(b, a.roomFor(t.Self(), n), "room beyond what was granted")
			for range fit {
				c := t.recv()
				c.requireOK()
				kept = append(kept, c.keepEnvelope())
			}
			require.Equal(b, int64(fit)*each, b.roomOf(t).RoomHeld)
			for _, e := range kept {
				e.Accept()
			}
			b.drain(a, t)
			require.Zero(b, a.roomFor(t.Self(), n), "room of messages that are accepted and not freed")
			for i, e := range kept {
				require.True(b, bytes.Equal(pattern(i, n), e.Data), "message %d before it is freed", i)
				e.Free()
				require.Equal(b, int64(fit-i-1)*each, b.roomOf(t).RoomHeld)
			}
			// Room that is less than half of the total may wait to be announced with a message.
			last := a.recvExpected(t.Self(), 99, 8)
			t.sendExpected(toA, 99, nil)
			last.requireOK()
			b.until("the room is back", func() bool { return a.roomFor(t.Self(), n) >= fit })
			b.drain(a, t)
			require.Equal(b, fit, a.roomFor(t.Self(), n), "room in round %d", round)
		}
	})
}

func roomOfUnsentMessages(b *bed) {
	const g, n = 2, 40 << 10
	t := b.listen(na.Config{Envelopes: g})
	a := b.origin(na.Config{SendQueue: 3})
	toA, toT := b.connect(a, t)
	b.grant(a, t, toA, n)
	b.grant(a, t, toA, n)
	b.drain(a, t)
	fit := a.roomFor(t.Self(), n)
	require.GreaterOrEqual(b, fit, 4)
	same := func(free int, when string) {
		b.Helper()
		b.drain(a, t)
		require.Equal(b, free, a.roomFor(t.Self(), n), "room after %s", when)
	}
	op := a.NewOp(func(*na.Op, na.Result) {})
	bound, _ := a.Upper().ClaimRoom(t.Self(), n)
	require.Error(b, a.SendUnexpectedBy(op, bound, 1, make([]byte, n), na.Deadline{At: 1, Field: n}))
	same(fit, "a send that was refused")

	first := a.sendLong(t.Self(), 1, pattern(1, n))
	sent := first.requireOK()
	a.send(t.Self(), 2, nil).requireOK()
	waits := a.sendLong(t.Self(), 3, pattern(3, n))
	same(fit-2, "one left and one waits")
	require.ErrorIs(b, waits.cancelNow().Err, na.ErrCanceled)
	require.Equal(b, na.NotRun, waits.result().Fate)
	same(fit-1, "the one that waits was canceled")

	queued := []*call{a.send(t.Self(), 4, nil), a.send(t.Self(), 5, nil), a.send(t.Self(), 6, nil)}
	a.sendLong(t.Self(), 7, pattern(7, n)).requireNotRun(na.ErrNoCredit)
	same(fit-1, "one found the queue full")

	c := a.call("withdraw")
	c.start(func(op *na.Op) error { return a.Withdraw(op, toT, sent.ID) }).requireOK()
	b.until("its envelope is free", func() bool { return count(queued) == 1 })
	require.Equal(b, na.Tag(2), t.next().tag, "what was withdrawn is not received")
	b.until("the rest leaves", func() bool { b.receiveAll(t); return count(queued) == len(queued) })
	// The room may wait to be announced with a message. It returns with the credit for the received
	// messages.
	b.until("its room is back", func() bool { b.receiveAll(t); return a.roomFor(t.Self(), n) == fit })
	same(fit, "it was withdrawn")
}

func roomHeadToHead(b *bed) {
	b.rounds([]int{1, 2, 8}, func(g int) {
		const n = 40 << 10
		cfg := na.Config{Envelopes: g}
		left, right := b.listen(cfg), b.listen(cfg)
		toLeft, toRight := b.connect(left, right)
		for range 3 {
			b.grant(left, right, toLeft, n)
			right.Upper().GrantRoom(toLeft, n)
			b.grantTo(right, toLeft, left, toRight, n)
		}
		send := func(from *side, to na.Addr) (cs []*call) {
			long := min(g, from.roomFor(to, n))
			for i := range g {
				if i%2 == 0 && long > 0 {
					long--
					cs = append(cs, from.sendLong(to, na.Tag(i), pattern(i, n)))
				} else {
					cs = append(cs, from.send(to, na.Tag(i), pattern(i, 10)))
				}
			}
			return cs
		}
		cs := append(send(left, toRight), send(right, toLeft)...)
		for _, c := range cs { // nothing has been received
			c.requireOK()
		}
		over := []*call{left.send(toRight, 99, nil), right.send(toLeft, 99, nil)}
		b.drain(left, right)
		require.Zero(b, count(over), "one message more than was guaranteed")
		for _, s := range []*side{left, right} {
			for i := range g {
				require.Equal(b, na.Tag(i), s.next().tag)
			}
			require.Equal(b, na.Tag(99), s.next().tag)
		}
		for _, c := range over {
			c.requireOK()
		}
	})
}

func roomBudget(b *bed) {
	const budget, n = 4 << 20, na.MaxRoom
	t := b.listen(na.Config{Budget: budget, Envelopes: 4})
	var as []*side
	var toAs []na.Addr
	for range 4 {
		a := b.origin(na.Config{})
		toA, _ := b.connect(a, t)
		as, toAs = append(as, a), append(toAs, toA)
	}
	idle := t.Stats().Reserved
	for range 10 {
		for _, toA := range toAs {
			t.Upper().GrantRoom(toA, n)
		}
	}
	require.LessOrEqual(b, t.Stats().Reserved-idle, int64(budget/4), "room of all peers")
	require.Greater(b, t.Stats().Reserved-idle, int64(budget/4-n), "room of all peers")
	b.until("the first peer knows of room", func() bool { return as[0].roomFor(t.Self(), n) > 0 })
	as[0].sendLong(t.Self(), 1, pattern(1, n)).requireOK()
	c := t.recv()
	c.requireOK()
	held := c.keepEnvelope()
	for _, a := range as {
		require.NoError(b, a.cls.Close())
	}
	b.until("the peers have left", func() bool { return t.Stats().Peers == 0 })
	require.Positive(b, t.Stats().Reserved, "room of a message that is in use")
	require.True(b, bytes.Equal(pattern(1, n), held.Data))
	held.Free()
	b.until("all is given back", func() bool { return t.Stats().Reserved == 0 })
}

func roomCancelsReceive(b *bed) {
	const n = 60 << 10
	a, t := b.pair(na.Config{})
	toA, toT := b.connect(a, t)
	for i := range 20 {
		tag := na.Tag(10 + i)
		c := a.recvLong(toT, tag, 100, na.MaxRoom)
		s := t.sendExpectedLong(toA, tag, pattern(i, n), na.MaxRoom)
		for range i {
			b.pass()
		}
		c.op.Cancel()
		again := a.recvLong(toT, tag+100, 100, na.MaxRoom)
		s.requireOK()
		r := c.wait()
		require.True(b, r.Err == nil || na.CodeOf(r.Err) == na.ErrCanceled, "a canceled receive ended with %v", r.Err)
		c.freeEnvelope()
		t.sendExpectedLong(toA, tag+100, pattern(i+1, n), na.MaxRoom).requireOK()
		require.True(b, bytes.Equal(pattern(i+1, n), again.requireOK().Envelope.Data), "the message after it")
		again.freeEnvelope()
	}
}
