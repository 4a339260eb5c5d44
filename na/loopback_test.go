package na

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestLoopLimitPerTurn checks the limit of a class that sends to itself: the goroutine that moves the
// frames moves at most a fixed number in a turn, and the others follow by themselves.
func TestLoopLimitPerTurn(t *testing.T) {
	const frames = maxDrain / minCost
	const n = 6*frames + 5
	s := newScript(t, Config{})
	to := s.nctx.Self()
	for i := range n {
		s.op(func(op *Op) error { return s.nctx.RecvExpected(op, to, Tag(i), make([]byte, 1)) })
	}
	s.nctx.corks.Add(1)
	for i := range n {
		s.op(func(op *Op) error { return s.nctx.SendExpected(op, to, Tag(i), []byte("x")) })
	}
	s.nctx.Upper().Uncork()
	require.LessOrEqual(t, s.trigger(), 2*2*frames, "sends and receives that end in one call")
	at := s.e.Next()
	ok := at != 0
	require.True(t, ok)
	require.LessOrEqual(t, at, s.clock, "the rest is due")
	s.advance(0)
	require.Equal(t, 2*frames, s.trigger(), "and in one turn of the context")
	for s.ends < 2*n { // a leader that would block returns at once
		require.NoError(t, s.nctx.Progress(time.Minute))
		s.trigger()
	}
	s.e.Lock()
	defer s.e.Unlock()
	require.False(t, s.dom.self.pending.Load() || s.dom.self.rest.Load())
	require.Empty(t, s.dom.self.todo)
}

// TestLoopContinuesInNextSession checks that remaining frames move to the next session, and its context
// need not be one that is closed.
func TestLoopContinuesInNextSession(t *testing.T) {
	s := newScript(t, Config{})
	other, err := s.dom.cls.NewContext()
	require.NoError(t, err)
	defer func() {
		other.Close()
		for !other.Closed() {
			other.Trigger(0)
			_ = other.Progress(0)
		}
	}()
	p := &s.dom.self
	p.pumping = true // no goroutine uses the remaining memory
	p.pushTodoLocked(&session{e: s.dom.endpointOf(0)})
	p.pushTodoLocked(p.todo[0])
	require.Len(t, p.todo, 1, "a session waits once")
	p.pushTodoLocked(&session{e: s.dom.endpointOf(1)})
	require.Same(t, s.nctx, p.nextRunnerLocked())
	s.nctx.Close()
	require.Same(t, other, p.nextRunnerLocked())
	require.True(t, p.rest.Swap(false))
	p.todo = nil
	require.Nil(t, p.nextRunnerLocked())
	require.False(t, p.pending.Load() || p.rest.Load())
	p.pumping = false
}

// TestSelfTransferIsShared checks that a transfer within the process is moved in small steps by
// whichever goroutine calls: its start, other operations, a cancel and Trigger do not wait for it,
// and a turn of the leader has time for the peers too.
func TestSelfTransferIsShared(t *testing.T) {
	const size, piece, most = 64 << 20, 256 << 10, 2 << 20
	s := newScript(t, Config{})
	theirs, ours := make([]byte, size), bytes.Repeat([]byte{1}, size)
	mem, err := s.dom.cls.Register(ReadWrite, theirs)
	require.NoError(t, err)
	local, err := s.dom.cls.NewMem(ours)
	require.NoError(t, err)
	moved := func() (n int) {
		for at := 0; at < size; at += piece {
			n += int(theirs[at])
		}
		return n * piece
	}
	before := 0
	little := func(what string, limit int) {
		now := moved()
		require.LessOrEqual(t, now-before, limit, what)
		before = now
	}
	to := s.nctx.Self()
	s.op(func(op *Op) error { return s.nctx.Put(op, local, 0, to, mem.Key(), 0, size) })
	little("Put", most)
	recv := s.op(func(op *Op) error { return s.nctx.RecvExpected(op, to, 1, make([]byte, 1)) })
	for range 10 {
		s.op(func(op *Op) error { return s.nctx.SendExpected(op, to, 2, []byte("x")) })
	}
	recv.Cancel()
	s.trigger()
	little("messages, Cancel and Trigger", 0)
	turns := 0
	for ; moved() < size; turns++ {
		s.advance(0)
		little("a turn of the leader", most)
	}
	require.Less(t, turns, size/piece)
	for s.ends < 12 {
		s.advance(0)
		s.trigger()
	}
}
