package natest

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
)

var bodyRules = []rule{
	{name: "BodiesArrive", check: bodiesArrive,
		why: "a body of any size arrives whole beside its message, each way, and its room is returned, once"},
	{name: "BodyLimits", check: bodyLimits,
		why: "a body needs room and has a limit, and a receive that takes none gets none"},
	{name: "BodyCanceledAnywhere", check: bodyCanceledAnywhere,
		why: "a message whose body is canceled at any piece has not left, or arrives whole: its memory is free, and its room and envelope are returned"},
	{name: "BodyWithdrawnAnywhere", check: bodyWithdrawnAnywhere,
		why: "a message can be withdrawn while its body is on its way, too"},
	{name: "BodyOfCanceledReceive", check: bodyOfCanceledReceive,
		why: "a receive that is canceled at any piece of the answer ends at once, the answer affects nothing else, and its room is returned"},
	{name: "BodiesOfLostPeers", check: bodiesOfLostPeers,
		why: "a session that ends at any piece ends its operations, and the memory of its bodies is released"},
	{name: "BodyAmongMessages", check: bodyAmongMessages,
		why: "messages and transfers pass between the pieces of a body, and their memory is not mixed up"},
}

// bodySizes holds lengths around some size classes, of one piece and of several pieces.
var bodySizes = []int{5000, na.MaxRoom, na.MaxRoom + 1, 96<<10 + 1, 300 << 10, 1 << 20, na.MaxBody}

// bodyOf returns memory that contains body, to be sent by c. Every other call sets copied, in which
// case the transport must copy the memory when c starts, and the caller must call spoil, which
// overwrites the memory, right after that. Otherwise the memory is overwritten when c completes.
func (s *side) bodyOf(c *call, body []byte) (own []byte, spoil func(), copied bool) {
	own = bytes.Clone(body)
	spoil = func() {
		for i := range own {
			own[i] = spent
		}
	}
	if s.copies = !s.copies; s.copies {
		return own, spoil, true
	}
	c.then = func(na.Result) { spoil() }
	return own, func() {}, false
}

// callBody starts a call with a body, for which there must be room. Its memory is overwritten when
// the call completes or, if it is copied, once the call has started.
func (s *side) callBody(to na.Addr, tag na.Tag, msg, body []byte) *call {
	s.b.Helper()
	bound, ok := s.Upper().ClaimRoom(to, len(body))
	require.True(s.b, ok, "room for a body of %d bytes", len(body))
	c := s.call(fmt.Sprintf("call %d with a body of %d bytes", tag, len(body)))
	c.buffer(100)
	own, spoil, copied := s.bodyOf(c, body)
	return c.start(func(op *na.Op) error {
		defer spoil()
		return s.Upper().Call(op, na.CallSpec{To: bound, Tag: tag, Msg: bytes.Clone(msg), Body: own, Copy: copied, Buf: c.buf, Bodies: true})
	})
}

// answerBody sends an answer with a body. Memory is handled as in callBody.
func (s *side) answerBody(to na.Addr, tag na.Tag, msg, body []byte) *call {
	s.b.Helper()
	bound, ok := s.Upper().ClaimRoom(to, len(body))
	require.True(s.b, ok, "room for a body of %d bytes", len(body))
	c := s.call(fmt.Sprintf("answer %d with a body of %d bytes", tag, len(body)))
	own, spoil, copied := s.bodyOf(c, body)
	return c.start(func(op *na.Op) error {
		defer spoil()
		return s.Upper().SendExpectedBody(op, bound, tag, msg, own, copied)
	})
}

// receiveBody receives a message and checks it and its body.
func (b *bed) receiveBody(t *side, tag na.Tag, msg, body []byte) *na.Envelope {
	b.Helper()
	c := t.recv()
	r := c.requireOK()
	env := c.keepEnvelope()
	require.Equal(b, tag, r.Tag)
	require.True(b, bytes.Equal(msg, env.Data), "the message before the body")
	require.True(b, bytes.Equal(body, env.Body), "a body of %d bytes arrives damaged", len(body))
	return env
}

// bodyPair returns two sides that have room at each other for some bodies of n bytes.
func (b *bed) bodyPair(n int) (a, t *side, toA na.Addr) {
	b.Helper()
	a, t = b.pair(na.Config{})
	toA, _ = b.connect(a, t)
	b.grant(a, t, toA, n)
	a.Upper().GrantRoom(t.Self(), n)
	b.until("the other side has room, too", func() bool { return t.roomFor(toA, n) > 0 })
	b.drain(a, t)
	return a, t, toA
}

// waitNoneHeld drives the contexts until no room at s is occupied.
func (b *bed) waitNoneHeld(s *side) {
	b.Helper()
	b.until("no room is taken", func() bool { return b.roomOf(s).RoomHeld == 0 })
}

func bodiesArrive(b *bed) {
	b.rounds(bodySizes, func(n int) {
		a, t, toA := b.bodyPair(n)
		for i := range 6 {
			tag, in, out := na.Tag(i), pattern(i, n), pattern(100+i, n-i)
			c := a.callBody(t.Self(), tag, pattern(i, 30), in)
			env := b.receiveBody(t, tag, pattern(i, 30), in)
			require.Positive(b, b.roomOf(t).RoomHeld)
			answer := t.answerBody(env.From, tag, pattern(i, 20), out)
			c.requireOK()
			answer.requireOK()
			require.True(b, bytes.Equal(in, env.Body), "a body of %d bytes before it is freed", n)
			env.Free()
			require.Zero(b, b.roomOf(t).RoomHeld)
			got := c.keepEnvelope()
			require.True(b, bytes.Equal(pattern(i, 20), got.Data), "the answer before its body")
			require.True(b, bytes.Equal(out, got.Body), "the body of an answer of %d bytes arrives damaged", n)
			require.Zero(b, b.roomOf(a).RoomHeld, "the receiver of a body has its memory")
			got.Free()
			b.until("the room is back", func() bool { return a.roomFor(t.Self(), n) > 0 && t.roomFor(toA, n) > 0 })
		}
		b.drain(a, t)
	})
}

func bodyLimits(b *bed) {
	const n = 100_000
	a, t, toA := b.bodyPair(n)
	fit := a.roomFor(t.Self(), n)
	for _, bad := range []int{0, a.Limits().MaxUnexpected, na.MaxBody + 1} {
		a.call("call with a bad body").requireRefused(na.ErrMsgSize, func(op *na.Op) error {
			return a.Upper().Call(op, na.CallSpec{To: toA, Tag: 1, Msg: []byte{1}, Body: make([]byte, bad)})
		})
	}
	bound := b.roomOf(a).Addr
	c := a.call("call with no claim")
	c.start(func(op *na.Op) error {
		return a.Upper().Call(op, na.CallSpec{To: bound, Tag: 1, Msg: []byte{1}, Body: make([]byte, n)})
	})
	c.requireNotRun(na.ErrMsgSize)
	require.Equal(b, fit, a.roomFor(t.Self(), n))

	plain := a.recvExpected(t.Self(), 7, 100)
	t.answerBody(toA, 7, []byte{1}, pattern(1, n)).requireOK()
	plain.requireFails(na.ErrOverflow)
	t.answerBody(toA, 8, []byte{1}, pattern(1, n)).requireOK() // there is no receive for it
	b.drain(a, t)
	b.waitNoneHeld(a)
}

// stages tests interference with a call at each stage of its progress. For i = 0, 1, 2, and so on,
// it starts a call with begin, takes i steps, and then calls over to interfere and check the call,
// until a call completes within its i steps.
func (b *bed) stages(begin func(i int) (c *call), over func(c *call, i int)) {
	b.Helper()
	for i := range 60 {
		c := begin(i)
		for range i {
			b.step()
		}
		done := c.ended()
		over(c, i)
		if done {
			return
		}
	}
}

func bodyCanceledAnywhere(b *bed) {
	b.rounds([]int{na.MaxRoom, 600 << 10, na.MaxBody}, func(n int) {
		a, t, _ := b.bodyPair(n)
		arrived := map[na.Tag]bool{}
		drain := func() {
			for t.Stats().Envelopes > 0 {
				c := t.recv()
				tag := c.requireOK().Tag
				env := c.keepEnvelope()
				require.True(b, bytes.Equal(pattern(int(tag), n), env.Body), "a body of which a part was canceled")
				arrived[tag] = true
				env.Free()
			}
		}
		for i := range 40 {
			c := a.callBody(t.Self(), na.Tag(i), []byte{1}, pattern(i, n))
			for range i {
				b.step()
			}
			r := c.cancelNow()
			require.ErrorIs(b, r.Err, na.ErrCanceled)
			b.drain(a, t)
			drain()
			if r.Fate == na.NotRun {
				require.False(b, arrived[na.Tag(i)], "a message that did not leave")
			} else {
				b.until("what has left arrives", func() bool { drain(); return arrived[na.Tag(i)] })
			}
			b.waitNoneHeld(t)
			b.until("the room is back", func() bool { return a.roomFor(t.Self(), n) > 0 })
			if arrived[na.Tag(i)] {
				break
			}
		}
	})
}

func bodyWithdrawnAnywhere(b *bed) {
	const n = 600 << 10
	a, t, _ := b.bodyPair(n)
	for i := range 30 {
		b.until("the room is back", func() bool { return a.roomFor(t.Self(), n) > 0 })
		c := a.callBody(t.Self(), na.Tag(i), []byte{1}, pattern(i, n))
		for range i {
			b.step()
		}
		to, id, left := a.Upper().CancelIfUnsent(c.op)
		if !left {
			c.requireNotRun(na.ErrCanceled)
			b.waitNoneHeld(t)
			continue
		}
		w := a.call("withdraw")
		w.start(func(op *na.Op) error { return a.Withdraw(op, to, id) }).requireOK()
		c.cancelNow()
		b.drain(a, t)
		require.Zero(b, t.Stats().Envelopes, "what was withdrawn is not received")
		b.waitNoneHeld(t)
	}
}

func bodyOfCanceledReceive(b *bed) {
	const n = 600 << 10
	a, t, toA := b.bodyPair(n)
	b.stages(func(i int) *call {
		tag := na.Tag(i)
		c := a.call("call")
		c.buffer(100)
		c.start(func(op *na.Op) error {
			return a.Upper().Call(op, na.CallSpec{To: t.Self(), Tag: tag, Msg: []byte{1}, Buf: c.buf, Bodies: true})
		})
		t.next()
		t.answerBody(toA, tag, []byte{2}, pattern(i, n))
		return c
	}, func(c *call, i int) {
		if r := c.cancelNow(); r.Err == nil {
			require.True(b, bytes.Equal(pattern(i, n), r.Envelope.Body))
			c.freeEnvelope()
		}
		b.drain(a, t)
		b.waitNoneHeld(a)
		b.until("the room is back", func() bool { return t.roomFor(toA, n) > 0 })
	})
}

func bodiesOfLostPeers(b *bed) {
	for i := range 12 {
		if i > 0 {
			b.reopen()
		}
		const n = 600 << 10
		a, t, toA := b.bodyPair(n)
		c := a.callBody(t.Self(), 1, []byte{1}, pattern(i, n))
		s := t.answerBody(toA, 99, []byte{1}, pattern(i, n))
		for range 2 * i {
			b.step()
		}
		if i%2 == 0 {
			a.Disconnect(t.Self(), errors.New("it has to go"))
		} else {
			t.Disconnect(toA, errors.New("it has to go"))
		}
		c.requireFails(na.ErrPeerLost)
		s.wait()
		b.until("what has arrived is received", func() bool { b.receiveAll(t); return t.Stats().Envelopes == 0 })
	}
}

func bodyAmongMessages(b *bed) {
	const n = 1 << 20
	a, t, _ := b.bodyPair(n)
	b.grant(a, t, b.roomOf(t).Addr, n)
	b.drain(a, t)
	fit := min(a.roomFor(t.Self(), n), 3)
	m := t.register(na.ReadWrite, pattern(50, n))
	here := make([]byte, n)
	get := a.get(a.private(here), 0, t.Self(), m.Key(), 0, n)
	for i := range fit {
		a.callBody(t.Self(), na.Tag(2*i), []byte{1}, pattern(i, n-i))
		a.send(t.Self(), na.Tag(2*i+1), pattern(i, 100))
	}
	long := 0
	for range 2 * fit {
		c := t.recv()
		r := c.requireOK()
		env := c.keepEnvelope()
		if i := int(r.Tag / 2); r.Tag%2 == 0 {
			require.True(b, bytes.Equal(pattern(i, n-i), env.Body), "body %d", i)
			long++
		} else {
			require.Nil(b, env.Body)
			require.True(b, bytes.Equal(pattern(i, 100), env.Data), "message %d", i)
		}
		env.Free()
	}
	require.Equal(b, fit, long)
	get.requireOK()
	require.True(b, bytes.Equal(pattern(50, n), here), "what was got meanwhile")
	t.deregister(m).requireOK()
	b.waitNoneHeld(t)
	for _, c := range b.calls {
		if !c.ended() {
			c.cancelNow()
		}
	}
}
