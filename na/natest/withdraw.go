package natest

import (
	"encoding/binary"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
)

var withdrawRules = []rule{
	{name: "WithdrawHeld", engine: true, check: withdrawHeld,
		why: "a message that was not accepted can be withdrawn, received or not, and its envelope is free again"},
	{name: "WithdrawAccepted", engine: true, check: withdrawAccepted,
		why: "a message that was accepted cannot be withdrawn: the answer is certain about which of the two it was"},
	{name: "WithdrawUnknown", engine: true, check: withdrawUnknown,
		why: "only a message that was sent in the session can be taken back, and each once"},
	{name: "WithdrawLost", engine: true, check: withdrawLost,
		why: "when the session ends before the answer, the state of an accepted message is unknown: the withdraw ends with ErrPeerLost"},
	{name: "Abandon", engine: true, check: abandon,
		why: "a message that was not accepted is destroyed when its sender abandons it; the target that has accepted it, or watches it, is notified"},
	{name: "Deadline", engine: true, check: deadline,
		why: "a message carries the time left when it leaves, and does not leave when none is"},
	{name: "Timer", check: timer,
		why: "a timer ends when its time has passed and not before, and can be canceled"},
}

func (s *side) withdraw(m *call) *call {
	s.b.Helper()
	r := m.requireOK()
	require.NotZero(s.b, r.ID, "a send that left has what Withdraw needs")
	return s.call("withdraw").start(func(op *na.Op) error { return s.Withdraw(op, r.Addr, r.ID) })
}

func withdrawHeld(b *bed) {
	t := b.listen(na.Config{Envelopes: 4})
	a := b.origin(na.Config{})
	for range 20 {
		ms := a.sendMany(t.Self(), 4)
		for _, m := range ms {
			m.requireOK()
		}
		b.until("all are held", func() bool { return t.Stats().Envelopes == 4 })
		in := t.recv()
		in.requireOK()
		env := in.keepEnvelope() // the first, received and not accepted
		a.withdraw(ms[0]).requireOK()
		a.withdraw(ms[2]).requireOK()
		require.False(b, env.Accept(), "the message was reported as withdrawn")
		env.Free()
		for _, want := range []na.Tag{1, 3} {
			require.Equal(b, want, t.next().tag, "the others arrive, in order")
		}
		b.until("every envelope is free", func() bool { return t.Stats().Envelopes == 0 })
	}
	require.Equal(b, int64(40), t.Stats().Withdrawn)
}

func withdrawAccepted(b *bed) {
	a, t := b.pair(na.Config{})
	m := a.send(t.Self(), 1, []byte("kept"))
	in := t.recv()
	in.requireOK()
	env := in.keepEnvelope()
	require.True(b, env.Accept())
	a.withdraw(m).requireFails(na.ErrTooLate)
	require.Equal(b, "kept", string(env.Data), "the target that accepted it has it")
	env.Free()
	a.withdraw(m).requireFails(na.ErrTooLate)
	require.Zero(b, t.Stats().Withdrawn)
}

func withdrawUnknown(b *bed) {
	a, t := b.pair(na.Config{})
	m := a.send(t.Self(), 1, []byte("once"))
	r := m.requireOK()
	b.until("it is held", func() bool { return t.Stats().Envelopes == 1 })
	a.call("withdraw").start(func(op *na.Op) error { return a.Withdraw(op, r.Addr, r.ID+1) }).requireNotRun(na.ErrInvalid)
	first := a.withdraw(m)
	second := a.call("withdraw").start(func(op *na.Op) error { return a.Withdraw(op, r.Addr, r.ID) })
	first.requireOK()
	second.requireFails(na.ErrBusy, na.ErrTooLate)
	a.withdraw(m).requireFails(na.ErrTooLate)
	require.Equal(b, int64(1), t.Stats().Withdrawn)
}

func withdrawLost(b *bed) {
	a, t := b.pair(na.Config{})
	ms := a.sendMany(t.Self(), 3)
	for _, m := range ms {
		m.requireOK()
		in := t.recv()
		in.requireOK()
		require.True(b, in.keepEnvelope().Accept())
	}
	t.Close()
	cs := []*call{a.withdraw(ms[0]), a.withdraw(ms[1]), a.withdraw(ms[2])}
	for _, c := range cs {
		c.requireFails(na.ErrPeerLost)
	}
	a.withdraw(ms[0]).requireFails(na.ErrPeerLost)
}

func timer(b *bed) {
	a := b.origin(na.Config{})
	const soon = 20 * time.Millisecond
	begun := a.Now()
	first := a.call("timer").start(func(op *na.Op) error { return a.Timer(op, soon) })
	never := a.call("timer").start(func(op *na.Op) error { return a.Timer(op, time.Hour) })
	require.ErrorIs(b, never.cancelNow().Err, na.ErrCanceled)
	first.requireOK()
	require.GreaterOrEqual(b, a.Now()-begun, soon)
	left := a.call("timer").start(func(op *na.Op) error { return a.Timer(op, time.Hour) })
	a.Close()
	left.requireFails(na.ErrClosed)
}

func abandon(b *bed) {
	t := b.listen(na.Config{Envelopes: 2})
	a := b.origin(na.Config{})
	var mu sync.Mutex // OnAbandon is called on any goroutine
	var heard []na.Tag
	t.Upper().OnAbandon(func(e *na.Envelope) {
		mu.Lock()
		heard = append(heard, e.Tag)
		mu.Unlock()
	})
	take := func() (tags []na.Tag) { // returns tags reported since the last take
		b.until("the side that accepted or watches the message is told", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(heard) > 0
		})
		mu.Lock()
		defer mu.Unlock()
		tags, heard = heard, nil
		return tags
	}
	ms := a.sendMany(t.Self(), 2)
	kept, lost := ms[0].requireOK(), ms[1].requireOK()
	in := t.recv()
	in.requireOK()
	env := in.keepEnvelope()
	require.True(b, env.Accept())
	a.Upper().Abandon(lost.Addr, lost.ID)
	a.Upper().Abandon(kept.Addr, kept.ID)
	require.Equal(b, []na.Tag{0}, take(), "the other was destroyed")
	b.until("it is destroyed", func() bool { return t.Stats().Envelopes == 0 })
	env.Free()
	for _, m := range a.sendMany(t.Self(), 2) {
		m.requireOK() // both envelopes are free
	}
	require.Equal(b, na.Tag(0), t.next().tag)
	require.Equal(b, na.Tag(1), t.next().tag)
	for i, m := range a.sendMany(t.Self(), 2) { // once with Abandon and once with Withdraw
		sent := m.requireOK()
		in := t.recv()
		in.requireOK()
		env := in.keepEnvelope()
		require.True(b, env.Watch(nil))
		if i == 0 {
			a.Upper().Abandon(sent.Addr, sent.ID)
		} else {
			a.withdraw(m).requireOK()
		}
		require.Equal(b, []na.Tag{na.Tag(i)}, take())
		require.False(b, env.Watch(nil))
		require.False(b, env.Accept())
		env.Free()
	}
}

func deadline(b *bed) {
	t := b.listen(na.Config{Envelopes: 1})
	a := b.origin(na.Config{})
	b.connect(a, t)
	send := func(left time.Duration) *call {
		return a.call("send with a deadline").start(func(op *na.Op) error {
			return a.SendUnexpectedBy(op, t.Self(), 1, make([]byte, 8), na.Deadline{At: a.Now() + left, Field: 4})
		})
	}
	first := send(time.Hour)
	first.requireOK()
	late := send(time.Millisecond)
	next := send(time.Hour)
	b.passTime(2 * time.Millisecond)
	m := t.next()
	us := time.Duration(binary.LittleEndian.Uint32(m.data[4:])) * time.Microsecond
	require.LessOrEqual(b, us, time.Hour)
	require.Greater(b, us, time.Hour-patience)
	late.requireNotRun(na.ErrTimeout)
	next.requireOK()
	require.Less(b, time.Duration(binary.LittleEndian.Uint32(t.next().data[4:]))*time.Microsecond, time.Hour-time.Millisecond,
		"what it has waited here is gone")
	a.call("send").requireRefused(na.ErrInvalid, func(op *na.Op) error {
		return a.SendUnexpectedBy(op, t.Self(), 1, make([]byte, 8), na.Deadline{At: 1, Field: 5})
	})
}
