package natest

import (
	"fmt"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
)

var flowRules = []rule{
	{name: "NoCreditFails", engine: true, check: noCreditFails,
		why: "with Fail or Block a message without an envelope fails at once and did not run, the order of the others is kept, and the one that waits gets the next"},
	{name: "ReserveHeadToHead", check: reserveHeadToHead,
		why: "LAM's rule deadlocks two sides that send all they were promised before they receive; with one hidden envelope it does not"},
	{name: "NeedAndWant", engine: true, check: needAndWant,
		why: "a peer that does not guarantee what is needed is refused with an error that states it, and none reserves more than is wanted"},
	{name: "GuaranteedToTheByte", engine: true, check: guaranteedToTheByte,
		why: "as many peers are admitted as the budget does for and not one more, and each can fill its envelopes whatever the others do"},
	{name: "Asymmetric", engine: true, check: asymmetric,
		why: "each side guarantees a number of its own"},
	{name: "HighWater", engine: true, check: highWater,
		why: "the gauges show how many envelopes the program really needs"},
}

// sendPatient starts sending a message that waits for an envelope even if Config.OnNoCredit is
// na.Fail.
func (s *side) sendPatient(to na.Addr, tag na.Tag) *call {
	s.b.Helper()
	c := s.call(fmt.Sprintf("patient send of message %d", tag))
	c.op.SetPatient(true)
	return c.start(func(op *na.Op) error { return s.SendUnexpected(op, to, tag, nil) })
}

// noCreditFails implements tests G-T4, G-T7, and G-T26, for requirements G11 and G12.
func noCreditFails(b *bed) {
	policies := []na.Policy{na.Fail, na.Block}
	b.rounds([]int{0, 1}, func(k int) {
		const g = 3
		t := b.listen(na.Config{Envelopes: g})
		a := b.origin(na.Config{OnNoCredit: policies[k]})
		b.connect(a, t)
		for range 5 {
			for i := range g {
				a.send(t.Self(), na.Tag(i), nil).requireOK()
			}
			a.send(t.Self(), 99, nil).requireNotRun(na.ErrNoCredit)
			waits := a.sendPatient(t.Self(), g)
			a.send(t.Self(), 99, nil).requireNotRun(na.ErrNoCredit)
			b.drain(a, t)
			require.False(b, waits.ended(), "there is no envelope for it")
			for i := range g + 1 {
				require.Equal(b, na.Tag(i), t.next().tag, "order")
			}
			waits.requireOK()
			b.drain(a, t) // the source is notified of the room
		}
		require.EqualValues(b, 15, a.Stats().Stalls)
	})
}

// reserveHeadToHead implements tests G-T5 and G-T6.
func reserveHeadToHead(b *bed) {
	cases := []struct {
		reserve na.Reserve
		g       int
	}{{na.LiteralReserve, 1}, {na.LiteralReserve, 2}, {na.LiteralReserve, 8}, {na.HonestReserve, 1}, {na.HonestReserve, 2}, {na.HonestReserve, 8}}
	b.rounds([]int{0, 1, 2, 3, 4, 5}, func(k int) {
		g, literal := cases[k].g, cases[k].reserve == na.LiteralReserve
		cfg := na.Config{Envelopes: g, OnNoCredit: na.Block, Reserve: cases[k].reserve}
		left, right := b.listen(cfg), b.listen(cfg)
		// Each side sends one message after the other, as a blocking program does, and receives once
		// all of them have been sent.
		var cs [2][]*call
		next := func(i int, s, to *side) bool {
			if n := len(cs[i]); n == 0 || n < g && cs[i][n-1].ended() {
				cs[i] = append(cs[i], s.sendPatient(to.Self(), na.Tag(n)))
			}
			return len(cs[i]) == g && cs[i][g-1].ended()
		}
		both := func() bool {
			one, other := next(0, left, right), next(1, right, left)
			return one && other
		}
		if !literal {
			b.until("both sides have sent all they were promised", both)
			require.Zero(b, left.Stats().Queued)
			// The reserved envelope is only for operations that wait.
			left.send(right.Self(), 99, nil).requireNotRun(na.ErrNoCredit)
		} else {
			for range 3 * g {
				both()
				b.drain(left, right)
				b.drain(right, left)
			}
			require.False(b, both(), "with the rule to the letter both wait for the other to receive")
			for i := range cs {
				require.Len(b, cs[i], g, "all are transmitted")
				require.False(b, cs[i][g-1].ended(), "the last of each waits")
			}
		}
		for i := range g {
			require.Equal(b, na.Tag(i), left.next().tag)
			require.Equal(b, na.Tag(i), right.next().tag)
		}
		b.until("all end when the other side receives", both)
	})
}

// needAndWant implements test G-T10.
func needAndWant(b *bed) {
	t := b.listen(na.Config{Envelopes: 4, Eager: 1024})
	a := b.origin(na.Config{Need: 5})
	r := a.send(t.Self(), 1, nil).requireNotRun(na.ErrUnreachable)
	require.Contains(b, r.Err.Error(), "5", "the error has the required number")
	require.Contains(b, r.Err.Error(), "4", "the error has the guaranteed number")
	b.until("the target has forgotten the peer", func() bool { return t.Stats().Reserved == 0 })
	a = b.origin(na.Config{Need: 4})
	a.send(t.Self(), 2, nil).requireOK()
	require.Equal(b, na.GuaranteedBytes(1, 4, 1024), t.Stats().Reserved)
	a = b.origin(na.Config{Want: 2})
	cs := a.sendMany(t.Self(), 3)
	cs[1].requireOK()
	b.drain(a, t)
	require.False(b, cs[2].ended(), "no more is guaranteed than was wanted")
	require.Equal(b, na.GuaranteedBytes(1, 4, 1024)+na.GuaranteedBytes(1, 2, 1024), t.Stats().Reserved)

	strict := b.listen(na.Config{Need: 3})
	poor := b.origin(na.Config{Envelopes: 2})
	r = poor.send(strict.Self(), 1, nil).requireNotRun(na.ErrUnreachable)
	require.Contains(b, r.Err.Error(), "guarantees 2 envelopes, want at least 3")
}

// guaranteedToTheByte implements tests G-T2, G-T9, and G-T11, for requirements G2, G6, G8, and G9.
func guaranteedToTheByte(b *bed) {
	const peers, g, eager = 3, 4, 512
	t := b.listen(na.Config{Envelopes: g, Eager: eager, Peers: peers, Budget: na.GuaranteedBytes(peers, g, eager)})
	var as []*side
	for i := range peers {
		a := b.origin(na.Config{})
		for j := range g {
			a.send(t.Self(), na.Tag(j), pattern(i, eager)).requireOK()
		}
		as = append(as, a)
	}
	b.until("all are held", func() bool { return t.Stats().Envelopes == peers*g })
	require.Equal(b, na.GuaranteedBytes(peers, g, eager), t.Stats().Reserved)
	over := as[0].send(t.Self(), g, nil)
	b.drain(as[0], t)
	require.False(b, over.ended(), "one more than is guaranteed stops at its source")
	late := b.origin(na.Config{})
	r := late.send(t.Self(), 1, nil).requireNotRun(na.ErrUnreachable)
	require.Contains(b, r.Err.Error(), "Config.Budget")
	for _, p := range t.Peers() {
		require.Equal(b, g, p.Held)
		require.Equal(b, g, p.Offered)
	}
	require.Len(b, t.Peers(), peers, "the guarantees of the others are untouched")
	require.NoError(b, as[1].cls.Close())
	b.until("a peer has left", func() bool { return t.Stats().Peers == peers-1 })
	b.receiveAll(t)
	require.Equal(b, na.GuaranteedBytes(peers-1, g, eager), t.Stats().Reserved)
	b.sendUntilReached(late, t.Self(), nil)
	over.requireOK()
}

// asymmetric implements test G-T26.
func asymmetric(b *bed) {
	left, right := b.listen(na.Config{Envelopes: 2}), b.listen(na.Config{Envelopes: 7})
	toLeft, _ := b.connect(left, right)
	if !b.net.Unverified {
		toLeft = left.Self() // its name leads to the same session
	}
	ls, rs := left.sendMany(right.Self(), 10), right.sendMany(toLeft, 10)
	b.until("every envelope is used", func() bool { return left.Stats().Envelopes == 2 && right.Stats().Envelopes == 7 })
	b.drain(left, right)
	b.drain(right, left)
	require.Equal(b, 7, count(ls))
	require.Equal(b, 2, count(rs))
	peers := left.Peers()
	if b.net.Unverified { // right also has a separate session to left
		peers = slices.DeleteFunc(peers, func(p na.PeerStats) bool { return p.Addr.Named() != right.Self() })
	}
	require.Len(b, peers, 1)
	for _, p := range peers {
		require.Equal(b, []int{2, 2, 7, 0, 3}, []int{p.Offered, p.Held, p.Promised, p.Free, p.Queued}, "%+v", p)
	}
	for range 10 {
		left.next()
		right.next()
	}
}

// highWater implements test G-T25.
func highWater(b *bed) {
	a, t := b.pair(na.Config{})
	for _, n := range []int{3, 17, 5} {
		for _, c := range a.sendMany(t.Self(), n) {
			c.requireOK()
		}
		b.until("all are held", func() bool { return t.Stats().Envelopes == n })
		b.receiveAll(t)
		b.drain(a, t)
	}
	require.Equal(b, 17, a.Stats().HighWater)
	for _, p := range a.Peers() {
		require.Equal(b, 17, p.HighWater)
		require.Equal(b, 32, p.Free)
	}
	require.Equal(b, 17, t.Peers()[0].HeldMax)
}
