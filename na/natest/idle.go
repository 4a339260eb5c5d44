package natest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
)

var idleRules = []rule{
	{name: "IdleEnds", engine: true, check: idleEnds,
		why: "a session without work ends at both sides, no fault is reported, and the next operation dials anew"},
	{name: "IdleStays", engine: true, check: idleStays,
		why: "a session stays while either side has anything open in it: a call, a receive, a message, a lease, memory of one peer alone"},
	{name: "IdleMakesRoom", engine: true, check: idleMakesRoom,
		why: "where the budget is short for one more peer an idle session ends, at the side that dials and at the one that is dialled"},
	{name: "IdleCrosses", engine: true, check: idleCrosses,
		why: "an operation that begins while an idle session is about to end uses a new one, and does not fail"},
}

// hasty is a configuration with which sessions are closed as soon as nothing is in flight.
var hasty = na.Config{IdleTimeout: 1, PeerTimeout: 500 * time.Millisecond}

// exchange makes a call from a to t, answers it, and checks the length of the answer.
func (b *bed) exchange(a, t *side) {
	b.Helper()
	k := a.ask(t.Self(), 1, pattern(1, 100), 100, na.Deadline{})
	t.answer(pattern(2, 50))
	require.EqualValues(b, 50, k.requireOK().N)
}

// requireNoFault checks that no side has counted a session as lost, left, or closed for a
// violation.
func (b *bed) requireNoFault(all ...*side) {
	b.Helper()
	for _, s := range all {
		st := s.Stats()
		faults := []int64{st.PeersLost, st.PeersLeft, st.Violations}
		require.Equal(b, make([]int64, len(faults)), faults, "lost, left, violations")
	}
}

func idleEnds(b *bed) {
	t, a := b.listen(hasty), b.listen(hasty)
	for _, s := range []*side{a, t} {
		s.OnFault(func(peer na.Addr, err error) { b.Errorf("a fault of %v is reported: %v", peer, err) })
	}
	for range 3 {
		before := a.Stats().PeersIdle
		k := a.ask(t.Self(), 1, pattern(1, 100), 100, na.Deadline{})
		m := t.recv()
		from := m.requireOK().Addr
		t.sendExpected(from, 1, pattern(2, 50)).requireOK()
		m.keepEnvelope().Free()
		require.EqualValues(b, 50, k.requireOK().N)
		ended := func() bool {
			return a.Stats().Peers == 0 && t.Stats().Peers == 0 && a.Stats().PeersIdle > before
		}
		b.until("the session ends", ended)
		require.False(b, t.Connected(from))
		require.Zero(b, t.Stats().Reserved+a.Stats().Reserved)

		if b.net.Unverified {
			// The peer at the other end of that session is unknown.
			t.send(from, 2, nil).requireNotRun(na.ErrUnreachable, na.ErrPeerLost)
			from = a.Self()
		}
		k = t.ask(from, 2, nil, 10, na.Deadline{}) // the address still reaches the same peer
		a.answer(nil)
		k.requireOK()
		b.until("the session ends", func() bool { return a.Stats().Peers == 0 && t.Stats().Peers == 0 })
	}
	b.requireNoFault(a, t)

	own := a.send(a.Self(), 1, nil)
	own.requireOK()
	a.recv().requireOK()
	b.passTime(200 * time.Millisecond)
	require.Equal(b, 1, a.Stats().Peers, "sessions of a process with itself")
}

func idleStays(b *bed) {
	type held struct {
		what string
		a, t *side
		end  func()
	}
	var all []held
	hold := func(what string, begin func(a, t *side) (end func())) {
		t, a := b.listen(na.Config{PeerTimeout: hasty.PeerTimeout, IdleTimeout: -1}), b.origin(hasty)
		b.exchange(a, t)
		all = append(all, held{what, a, t, begin(a, t)})
	}
	hold("call", func(a, t *side) func() {
		k := a.ask(t.Self(), 2, nil, 10, na.Deadline{})
		return func() { t.answer(nil); k.requireOK() }
	})
	hold("receive of the dialer", func(a, t *side) func() {
		k := a.recvExpected(t.Self(), 3, 10)
		return func() { k.op.Cancel(); k.wait() }
	})
	hold("receive of the peer", func(a, t *side) func() {
		k := t.recvExpected(t.Peers()[0].Addr, 3, 10)
		return func() { k.op.Cancel(); k.wait() }
	})
	hold("message that nobody has accepted", func(a, t *side) func() {
		a.send(t.Self(), 4, nil).requireOK()
		return func() { t.recv().requireOK() }
	})
	hold("memory for the peer alone", func(a, t *side) func() {
		m, err := t.cls.RegisterFor(t.Peers()[0].Addr, na.ReadOnly, make([]byte, 10))
		require.NoError(b, err)
		return func() { t.call("deregister").start(func(op *na.Op) error { return t.Deregister(op, m) }).requireOK() }
	})
	hold("memory of one that cannot be dialled", func(a, t *side) func() {
		m, err := a.cls.Register(na.ReadOnly, make([]byte, 10))
		require.NoError(b, err)
		return func() { a.call("deregister").start(func(op *na.Op) error { return a.Deregister(op, m) }).requireOK() }
	})
	b.passTime(400 * time.Millisecond)
	for _, h := range all {
		require.Equal(b, [2]int{1, 1}, [2]int{h.a.Stats().Peers, h.t.Stats().Peers}, h.what)
		require.Zero(b, h.a.Stats().PeersIdle, h.what)
		h.end()
		b.freeAll()
	}
	for _, h := range all {
		b.until("the session ends", func() bool { return h.a.Stats().Peers == 0 && h.t.Stats().Peers == 0 })
		b.requireNoFault(h.a, h.t)
	}
}

func idleMakesRoom(b *bed) {
	const peers = 5
	small := na.Config{Envelopes: 4, Budget: na.GuaranteedBytes(2, 4, 4096)}
	t := b.listen(small)
	var all []*side
	for range peers {
		a := b.origin(na.Config{})
		b.exchange(a, t)
		all = append(all, a)
		require.LessOrEqual(b, t.Stats().Peers, 2)
	}
	b.exchange(all[0], t)
	b.exchange(all[peers-1], t)
	b.requireNoFault(append(all, t)...)

	a := b.origin(small)
	var targets []*side
	for range peers {
		t := b.listen(na.Config{})
		b.exchange(a, t)
		targets = append(targets, t)
		require.LessOrEqual(b, a.Stats().Peers, 2)
	}
	b.until("the first has ended", func() bool { return targets[0].Stats().Peers == 0 })
	require.Equal(b, 1, targets[peers-1].Stats().Peers, "sessions with the last one")
	b.exchange(a, targets[0])
	b.requireNoFault(append(targets, a)...)
	// If a session takes long to close, closing of the next one may be requested as well.
	ended := a.Stats().PeersIdle
	require.GreaterOrEqual(b, ended, int64(peers+1-2), "sessions ended to make room")
	require.LessOrEqual(b, ended, int64(peers+1), "sessions ended to make room")
}

func idleCrosses(b *bed) {
	t, a := b.listen(hasty), b.listen(hasty)
	for i := range 12 {
		b.exchange(a, t)
		b.until("the session is about to end", func() bool { return i%3 > 0 || a.Stats().Peers == 0 })
		if i%3 == 2 {
			b.passTime(time.Duration(40+3*i) * time.Millisecond)
		}
		// Start all at once, in both directions.
		k, k2 := a.ask(t.Self(), 1, nil, 10, na.Deadline{}), t.ask(a.Self(), 2, nil, 10, na.Deadline{})
		t.answer(nil)
		a.answer(nil)
		k.requireOK()
		k2.requireOK()
	}
	b.requireNoFault(a, t)
}
