package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// A class that sends to itself: who moves the frames moves so many and goes its own way, however many there are; the others
// follow by themselves.
func TestLoopIsShared(t *testing.T) {
	const n = 6*maxDrain + 5
	s := newScript(t, na.Config{})
	to := s.nctx.Self()
	for i := range n {
		s.op(func(op *na.Op) error { return s.nctx.RecvExpected(op, to, na.Tag(i), make([]byte, 1)) })
	}
	s.e.Cork()
	for i := range n {
		s.op(func(op *na.Op) error { return s.nctx.SendExpected(op, to, na.Tag(i), []byte("x")) })
	}
	s.e.Uncork()
	require.LessOrEqual(t, s.trigger(), 2*2*maxDrain, "sends and receives that end in one call")
	at, ok := s.e.NextTimer()
	require.True(t, ok)
	require.LessOrEqual(t, at, s.clock, "the rest is due")
	s.pass(0)
	require.Equal(t, 2*maxDrain, s.trigger(), "and in one turn of the context")
	for s.ends < 2*n { // a leader that would sleep goes on at once
		require.NoError(t, s.nctx.Progress(time.Minute))
		s.trigger()
	}
	s.e.Lock()
	defer s.e.Unlock()
	require.False(t, s.eng.self.pending.Load())
	require.Empty(t, s.eng.self.todo)
}

// What is left is the next link's, and its context need not be one that is closed.
func TestLoopGoesOnElsewhere(t *testing.T) {
	s := newScript(t, na.Config{})
	other, err := s.eng.cls.NewContext()
	require.NoError(t, err)
	defer func() {
		other.Close()
		for !other.Closed() {
			other.Trigger(0)
			_ = other.Progress(0)
		}
	}()
	p := &s.eng.self
	p.pumping = true // nobody touches what is left
	p.push(&Link{e: s.eng.Context(0)})
	p.push(p.todo[0])
	require.Len(t, p.todo, 1, "a link waits once")
	p.push(&Link{e: s.eng.Context(1)})
	require.Equal(t, s.nctx, p.next())
	s.nctx.Close()
	require.Equal(t, other, p.next())
	require.True(t, p.pending.Swap(false))
	p.todo = nil
	require.Nil(t, p.next())
	require.False(t, p.pending.Load())
	p.pumping = false
}
