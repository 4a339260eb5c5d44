package natest

import (
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
)

var creditRules = []rule{
	{name: "Envelopes", engine: true, check: envelopes,
		why: "as many messages as the receiver guaranteed leave the source; the rest waits there and none is lost"},
	{name: "Expedited", engine: true, check: expedited,
		why: "an expedited message gets through when ordinary ones have used every envelope that is guaranteed and more of them wait"},
	{name: "AcceptFreesRoom", engine: true, check: acceptFreesRoom,
		why: "room is returned when a message is accepted or freed, not when it is received, and the source is notified of each"},
	{name: "AcceptBeforeFull", engine: true, check: acceptBeforeFull,
		why: "room that was returned before the source had used all its credit is announced when the source needs it"},
	{name: "SendQueueFull", engine: true, check: sendQueueFull,
		why: "the queue at the source is bounded: one message more fails with ErrNoCredit and did not run, the others arrive"},
	{name: "HeadToHead", check: headToHead,
		why: "two processes that both send all that is guaranteed before they receive do not deadlock"},
	{name: "BudgetShort", engine: true, check: budgetShort,
		why: "memory for envelopes is bounded: a late peer is offered fewer, then refused with an error that has the reason, and room is returned"},
	{name: "EnvelopeOutlivesSession", engine: true, check: envelopeOutlivesSession,
		why: "a message that was received stays readable until it is freed, whatever became of its session or context"},
	{name: "AnswersNeedNoEnvelope", engine: true, check: answersNeedNoEnvelope,
		why: "answers and transfers go through when every envelope is used: else none could ever be freed"},
}

// few holds the numbers of envelopes with which rules are tested.
var few = []int{1, 2, 5, 32}

// count returns the number of calls in cs that have completed.
func count(cs []*call) (n int) {
	for _, c := range cs {
		if c.ended() {
			n++
		}
	}
	return n
}

// sendMany starts sending n messages, with tags 0 through n-1, and returns their calls.
func (s *side) sendMany(to na.Addr, n int) (cs []*call) {
	for i := range n {
		cs = append(cs, s.send(to, na.Tag(i), pattern(i, 10+i%50)))
	}
	return cs
}

func envelopes(b *bed) {
	b.rounds(few, func(g int) {
		const more = 20
		t := b.listen(na.Config{Envelopes: g})
		a := b.origin(na.Config{Envelopes: 9})
		require.Equal(b, g, t.Limits().Envelopes)
		cs := a.sendMany(t.Self(), g+more)
		b.until("as many have left as are guaranteed", func() bool { return count(cs) >= g && t.Stats().Envelopes >= g })
		b.drain(a, t)
		require.Equal(b, g, count(cs), "messages that left; guaranteed are %d", g)
		require.Equal(b, more, a.Stats().Queued, "messages that wait at the source")
		require.Equal(b, g, t.Stats().Envelopes, "messages that wait at the target")
		stalls := a.Stats().Stalls
		cs = append(cs, a.send(t.Self(), na.Tag(g+more), pattern(g+more, 10+(g+more)%50)))
		require.Equal(b, stalls+1, a.Stats().Stalls, "sends counted that had to wait for an envelope")
		for i := range g + more + 1 {
			m := t.next()
			require.Equal(b, na.Tag(i), m.tag, "order")
			require.Equal(b, pattern(i, 10+i%50), m.data)
		}
		for _, c := range cs {
			c.requireOK()
		}
	})
}

// expedite sends an expedited message.
func (s *side) expedite(to na.Addr, tag na.Tag) *call {
	s.b.Helper()
	c := s.call(fmt.Sprintf("expedited send of message %d", tag))
	c.op.SetExpedited(true)
	return c.start(func(op *na.Op) error { return s.SendUnexpected(op, to, tag, nil) })
}

func expedited(b *bed) {
	b.rounds(few, func(g int) {
		for _, cfg := range []na.Config{{}, {OnNoCredit: na.Block, Reserve: na.HonestReserve}, {OnNoCredit: na.Fail, Reserve: na.LiteralReserve}} {
			cfg.Envelopes, cfg.SendQueue = g, 3
			t, a := b.listen(cfg), b.origin(cfg)
			guaranteed := g
			if cfg.Reserve == na.HonestReserve {
				guaranteed++
			}
			to := t.Self()
			if cfg.Reserve == na.LiteralReserve {
				a.sendPatient(to, 0) // if there is only one envelope, only a patient message gets it
			} else {
				a.send(to, 0, nil).requireOK()
			}
			for i := 1; i < guaranteed; i++ {
				a.sendPatient(to, na.Tag(i))
			}
			b.until("every envelope that is guaranteed is used", func() bool { return t.Stats().Envelopes == guaranteed })
			// The send queue is full as well.
			behind := []*call{a.sendPatient(to, 100), a.sendPatient(to, 101), a.sendPatient(to, 102)}
			first := a.expedite(to, 200)
			second := a.expedite(to, 201)
			first.requireOK()
			b.until("the expedited message is there", func() bool { return t.Stats().Envelopes == guaranteed+na.ExpeditedEnvelopes })
			b.drain(a, t)
			require.False(b, second.ended(), "the first one was not accepted")
			require.Zero(b, count(behind), "ordinary messages do not use its envelope")
			for i := range guaranteed {
				require.Equal(b, na.Tag(i), t.next().tag)
				if i > 0 {
					continue
				}
				second.requireOK() // it is sent before the patient messages
				b.drain(a, t)
				require.Zero(b, count(behind), "the returned envelope is for expedited messages")
			}
			require.Equal(b, na.Tag(200), t.next().tag)
			for range 4 {
				t.next()
			}
			for _, c := range behind {
				c.requireOK()
			}
			b.reopen()
		}
	})
}

func acceptFreesRoom(b *bed) {
	b.rounds(few, func(g int) {
		t := b.listen(na.Config{Envelopes: g})
		a := b.origin(na.Config{})
		cs := a.sendMany(t.Self(), g+6)
		b.until("as many have left as are guaranteed", func() bool { return count(cs) == g && t.Stats().Envelopes == g })
		left := func(n int, when string) {
			b.Helper()
			b.until(fmt.Sprintf("message %d leaves after %s", n, when), func() bool { return count(cs) >= n })
			b.drain(a, t)
			require.Equal(b, n, count(cs), "messages that have left after %s", when)
		}
		recv := func() *na.Envelope {
			c := t.recv()
			c.requireOK()
			return c.keepEnvelope()
		}
		one := recv()
		left(g, "one was received")
		one.Accept()
		left(g+1, "it was accepted")
		one.Accept()
		left(g+1, "it was accepted again")
		require.Equal(b, pattern(0, 10), one.Data, "an accepted message is still there")
		one.Free()
		left(g+1, "it was freed")
		two := recv()
		two.Free()
		left(g+2, "the second was freed without being accepted")
		three, four := recv(), func() *na.Envelope {
			if g == 1 {
				return nil
			}
			return recv()
		}()
		three.Accept()
		left(g+3, "the third was accepted")
		if four != nil {
			four.Accept()
			left(g+4, "the fourth was accepted")
			four.Free()
		}
		three.Free()
		b.until("the rest leaves", func() bool { b.receiveAll(t); return count(cs) == len(cs) })
		b.drain(a, t) // and arrives
	})
}

func acceptBeforeFull(b *bed) {
	const g = 32
	t := b.listen(na.Config{Envelopes: g})
	a := b.origin(na.Config{})
	for _, c := range a.sendMany(t.Self(), g-2) {
		c.requireOK()
	}
	first := t.recv()
	first.requireOK()
	first.freeEnvelope()
	b.drain(a, t)
	for i, c := range a.sendMany(t.Self(), 3) {
		c.b.until(fmt.Sprintf("message %d of 3 leaves, for which there is room", i+1), c.ended)
	}
	last := a.send(t.Self(), 1, nil)
	b.drain(a, t)
	require.False(b, last.ended(), "one more than there is room for")
}

func sendQueueFull(b *bed) {
	const g, q = 2, 5
	t := b.listen(na.Config{Envelopes: g})
	a := b.origin(na.Config{SendQueue: q})
	b.connect(a, t)
	for round := range 3 {
		sent := a.sendMany(t.Self(), g)
		for _, c := range sent {
			c.requireOK()
		}
		queued := a.sendMany(t.Self(), q)
		for range 4 {
			a.send(t.Self(), 99, nil).requireNotRun(na.ErrNoCredit)
		}
		require.Equal(b, q, a.Stats().Queued)
		if round == 1 { // a cancel makes room in the queue
			require.ErrorIs(b, queued[q-1].cancelNow().Err, na.ErrCanceled)
			queued[q-1] = a.send(t.Self(), q-1, pattern(q-1, 10+q-1))
		}
		for _, n := range []int{g, q} {
			for i := range n {
				require.Equal(b, na.Tag(i), t.next().tag)
			}
		}
		for _, c := range queued {
			c.requireOK()
		}
	}
}

func headToHead(b *bed) {
	for _, g := range few {
		for _, n := range []int{g, 3*g + 1} {
			b.rounds([]int{0, 1}, func(k int) {
				cfg := na.Config{Envelopes: g}
				left, right := b.listen(cfg), b.listen(cfg)
				if k == 1 {
					b.connect(left, right)
				}
				ls := left.sendMany(right.Self(), n)
				rs := right.sendMany(left.Self(), n)
				if n == g { // neither side receives before all of its own messages have been sent
					for _, c := range append(ls, rs...) {
						c.requireOK()
					}
				}
				for i := range n {
					require.Equal(b, na.Tag(i), left.next().tag, "of %d messages with %d envelopes", n, g)
					require.Equal(b, na.Tag(i), right.next().tag, "of %d messages with %d envelopes", n, g)
				}
				for _, c := range append(ls, rs...) {
					c.requireOK()
				}
			})
			b.reopen()
		}
	}
	s := b.listen(na.Config{Envelopes: 1}) // a session with itself
	c := s.send(s.Self(), 1, nil)
	c.requireOK()
	s.next()
}

func budgetShort(b *bed) {
	const eager, g = 4096, 4
	budget := na.GuaranteedBytes(1, g, eager) + na.GuaranteedBytes(1, 1, eager) + eager/2
	t := b.listen(na.Config{Eager: eager, Envelopes: g, Budget: budget})
	leave := func(a *side) int {
		cs := a.sendMany(t.Self(), g+1)
		b.until("the first message leaves", func() bool { return count(cs) > 0 })
		b.drain(a, t)
		n := count(cs)
		for _, c := range cs {
			c.op.Cancel()
			c.wait()
		}
		b.receiveAll(t)
		return n
	}
	first, second, third := b.origin(na.Config{}), b.origin(na.Config{}), b.origin(na.Config{})
	// It waits for t, as second will, so that these sessions are not idle.
	first.recvExpected(t.Self(), 99, 8)
	require.Equal(b, g, leave(first), "messages of the first peer")
	second.recvExpected(t.Self(), 99, 8)
	require.Equal(b, 1, leave(second), "messages of the second peer: the budget is short")
	r := third.send(t.Self(), 1, nil).requireNotRun(na.ErrUnreachable, na.ErrNoMemory)
	require.Contains(b, r.Err.Error(), "Config.Budget", "the error has the requested number and the rest")
	require.Contains(b, r.Err.Error(), fmt.Sprint(budget), "the error has the requested number and the rest")
	require.LessOrEqual(b, t.Stats().Reserved, budget)
	require.Positive(b, t.Stats().Reserved)
	first.cls.Close()
	b.until("the first peer has left", func() bool { return first.cls.Closed() && t.Stats().Peers == 1 })
	fourth := b.origin(na.Config{})
	require.Equal(b, g, leave(fourth), "messages of a peer that connected when another had left")
	require.Equal(b, 1, leave(second), "messages of the second peer, whose session continues")

	// poor can itself guarantee only one envelope.
	poor := b.origin(na.Config{Budget: na.GuaranteedBytes(1, 1, eager)})
	u, v := b.listen(na.Config{}), b.listen(na.Config{})
	require.Equal(b, 1, len(poor.sendMany(u.Self(), 1)))
	b.until("its session is up", func() bool { return u.Stats().Peers == 1 })
	poor.send(v.Self(), 1, nil).requireNotRun(na.ErrNoMemory)
	poor.recvExpected(v.Self(), 1, 8).requireFails(na.ErrNoMemory)
}

func envelopeOutlivesSession(b *bed) {
	a, t := b.pair(na.Config{})
	for i := range 3 {
		a.send(t.Self(), na.Tag(i), pattern(i, 1000)).requireOK()
	}
	var kept []*na.Envelope
	for range 3 {
		c := t.recv()
		c.requireOK()
		kept = append(kept, c.keepEnvelope())
	}
	kept[0].Accept()
	require.NoError(b, a.cls.Close())
	b.until("the session is over", func() bool { return t.Stats().Peers == 0 })
	require.Positive(b, t.Stats().Reserved, "bytes reserved while envelopes are in use")
	kept[1].Accept()
	for i, e := range kept {
		require.Equal(b, pattern(i, 1000), e.Data)
	}
	kept[0].Free()
	require.NoError(b, t.cls.Close())
	b.until("everything is closed", func() bool { return t.cls.Closed() && a.cls.Closed() })
	for i, e := range kept[1:] {
		require.Equal(b, pattern(i+1, 1000), e.Data)
		e.Free()
	}
	require.Zero(b, t.Stats().Envelopes)
}

func answersNeedNoEnvelope(b *bed) {
	b.rounds([]int{1, 4}, func(g int) {
		cfg := na.Config{Envelopes: g}
		left, right := b.listen(cfg), b.listen(cfg)
		toLeft, _ := b.connect(left, right)
		cs := append(left.sendMany(right.Self(), g+3), right.sendMany(left.Self(), g+3)...)
		b.until("every envelope is used", func() bool { return left.Stats().Envelopes == g && right.Stats().Envelopes == g })
		answer := left.recvExpected(right.Self(), 7, 100)
		right.sendExpected(toLeft, 7, pattern(1, 100)).requireOK()
		answer.requireOK()
		b.drain(left, right)
		b.drain(right, left)
		require.Equal(b, 2*g, count(cs))
		for range g + 3 {
			left.next()
			right.next()
		}
	})
}
