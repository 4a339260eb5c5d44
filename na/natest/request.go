package natest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
)

var askRules = []rule{
	{name: "Ask", engine: true, check: asks,
		why: "a request and the receive of its answer are one operation that ends once, with the answer, and has the address of the request"},
	{name: "AskTakenBack", engine: true, check: requestsWithdrawn,
		why: "a request that has not left can be recalled, and did not run; a cancel, a deadline and the end of the session of one that has left have the fate MaybeRan"},
}

// ask starts a call with message data, whose answer may have up to n bytes.
func (s *side) ask(to na.Addr, tag na.Tag, data []byte, n int, by na.Deadline) *call {
	s.b.Helper()
	c := s.call("call")
	c.buffer(n)
	msg := append([]byte{}, data...)
	return c.start(func(op *na.Op) error {
		return s.Upper().Call(op, na.CallSpec{To: to, Tag: tag, Msg: msg, By: by, Buf: c.buf})
	})
}

// answer receives the oldest message, answers it with data, and frees it.
func (s *side) answer(data []byte) {
	s.b.Helper()
	in := s.recv()
	in.requireOK()
	env := in.keepEnvelope()
	out := s.call("answer")
	left := false
	err := out.try(func(op *na.Op) (err error) {
		left, err = s.Upper().Answer(op, env, env.Tag, data, 0)
		return err
	})
	require.NoError(s.b, err)
	if left { // it was sent immediately, without an operation
		out.mu.Lock()
		out.accepted--
		out.mu.Unlock()
		return
	}
	out.requireOK()
}

func asks(b *bed) {
	t := b.listen(na.Config{Envelopes: 2})
	a := b.origin(na.Config{})
	for i := range 20 {
		want := pattern(i, 10*i)
		k := a.ask(t.Self(), na.Tag(i), pattern(i, 20), 200, na.Deadline{})
		t.answer(want)
		r := k.requireOK()
		require.EqualValues(b, len(want), r.N)
		require.Equal(b, want, k.buf[:r.N])
		require.Equal(b, na.Tag(i), r.Tag)
		require.NotZero(b, r.ID)
		require.NotZero(b, r.Addr.Session())
	}
	k := a.ask(t.Self(), 1, nil, 10, na.Deadline{})
	t.answer(pattern(1, 11))
	require.Equal(b, na.Ran, k.requireFails(na.ErrOverflow).Fate)
	b.until("every envelope is free", func() bool { return t.Stats().Envelopes == 0 })
	b.drain(a, t)
}

func requestsWithdrawn(b *bed) {
	t := b.listen(na.Config{Envelopes: 1})
	a := b.origin(na.Config{})
	b.connect(a, t)
	first := a.ask(t.Self(), 1, nil, 10, na.Deadline{})
	b.until("it is held", func() bool { return t.Stats().Envelopes == 1 })
	waits := a.ask(t.Self(), 2, nil, 10, na.Deadline{})
	late := a.ask(t.Self(), 3, make([]byte, 4), 10, na.Deadline{At: a.Now() + time.Millisecond})

	_, _, left := a.Upper().CancelIfUnsent(waits.op)
	require.False(b, left)
	waits.requireNotRun(na.ErrCanceled)
	b.passTime(2 * time.Millisecond)
	late.requireNotRun(na.ErrTimeout)
	to, id, left := a.Upper().CancelIfUnsent(first.op)
	require.True(b, left, "one that has left is not recalled")
	require.False(b, first.ended())
	a.call("withdraw").start(func(op *na.Op) error { return a.Withdraw(op, to, id) }).requireOK()
	r := first.cancelNow()
	require.ErrorIs(b, r.Err, na.ErrCanceled)
	require.Equal(b, na.MaybeRan, r.Fate)
	require.Equal(b, id, r.ID)

	abandoned := a.ask(t.Self(), 4, nil, 10, na.Deadline{})
	b.until("it is held", func() bool { return t.Stats().Envelopes == 1 })
	a.Upper().AbandonCall(abandoned.op)
	abandoned.requireFails(na.ErrCanceled)
	b.until("it is destroyed", func() bool { return t.Stats().Envelopes == 0 })

	over := a.ask(t.Self(), 5, make([]byte, 4), 10, na.Deadline{At: a.Now() + time.Millisecond})
	b.passTime(2 * time.Millisecond)
	over.requireFails(na.ErrTimeout)
	b.until("the peer was told", func() bool { return t.Stats().Envelopes == 0 })

	lost := a.ask(t.Self(), 6, nil, 10, na.Deadline{})
	var env *na.Envelope
	for tag := na.Tag(0); tag != 6; {
		if env != nil { // an envelope of the previous round, received after the peer was notified
			env.Free()
		}
		in := t.recv()
		tag = in.requireOK().Tag
		env = in.keepEnvelope()
	}
	require.True(b, env.Accept())
	untaken := a.ask(t.Self(), 7, nil, 10, na.Deadline{})
	b.until("the next one is held", func() bool { return t.Stats().Envelopes == 1 })
	t.Close()
	require.Equal(b, na.MaybeRan, lost.requireFails(na.ErrPeerLost).Fate)
	untaken.requireNotRun(na.ErrPeerLost)
	env.Free()
}
