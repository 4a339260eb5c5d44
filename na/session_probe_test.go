package na

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

func (s *script) probe(timeout time.Duration) *result {
	s.Helper()
	return s.op(func(op *Op) error { return s.nctx.Probe(op, s.addr(), timeout) })
}

// TestProbesTogether checks that probes that wait together leave as one frame, and an answer ends
// those that it is for.
func TestProbesTogether(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(1)
	s.send("the only envelope")
	s.send("waits")
	s.drain(l)
	a, b := s.probe(0), s.probe(0)
	out := s.drain(l)
	require.Equal(t, []string{"PROBE"}, kinds(out))
	require.Equal(t, uint64(1), out[0].Op)
	c := s.probe(0)
	out = s.drain(l)
	require.Equal(t, []string{"PROBE"}, kinds(out), "with no envelope")
	require.Equal(t, uint64(2), out[0].Op)
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Probed, Op: 1}, nil))
	s.trigger()
	require.NoError(t, a.Err)
	require.NoError(t, b.Err)
	require.Equal(t, []int{1, 1, 0}, []int{a.ended, b.ended, c.ended})
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Probed, Op: 2, Tag: uint64(frame.NotReady)}, nil))
	s.trigger()
	require.ErrorIs(t, c.Err, ErrNotReady)
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Probed, Op: 2}, nil), "twice: late")
	require.Equal(t, int64(1), s.nctx.Stats().LateDropped)
}

// TestProbeNewestNumber checks that however many probes a peer sends, it is answered once, by
// Trigger, with the newest number.
func TestProbeNewestNumber(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(9)
	for n := range uint64(3 * maxControl) {
		require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Probe, Op: n + 1}, nil))
	}
	s.advance(time.Millisecond)
	require.Empty(t, s.drain(l), "no callbacks have run")
	s.trigger()
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Probe, Op: 1 << 40}, nil), "after Trigger: it waits for the next")
	out := s.drain(l)
	require.Equal(t, []string{"PROBED"}, kinds(out))
	require.Equal(t, uint64(3*maxControl), out[0].Op)
	require.Zero(t, out[0].Tag)
	s.nctx.class.SetReady(false)
	s.trigger()
	out = s.drain(l)
	require.Equal(t, []string{"PROBED"}, kinds(out))
	require.Equal(t, []uint64{1 << 40, uint64(frame.NotReady)}, []uint64{out[0].Op, out[0].Tag})
	s.trigger()
	require.Empty(t, s.drain(l))
}

// TestProbeOfAnEndedSession checks that a session that ends takes its probe with it: peers that
// connect, probe and disconnect leave nothing behind.
func TestProbeOfAnEndedSession(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(9)
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Probe, Op: 1}, nil))
	require.Len(t, s.e.probed, 1)
	mine := s.probe(0)
	s.e.Lock()
	l.Fail(ErrPeerLost)
	s.e.Unlock()
	require.Empty(t, s.e.probed)
	s.trigger()
	require.ErrorIs(t, mine.Err, ErrPeerLost)
	require.Equal(t, NotRun, mine.Fate)
}

func TestProbeHostile(t *testing.T) {
	for _, h := range []frame.Header{
		{Kind: frame.Probe},
		{Kind: frame.Probe, Op: 1, Tag: 1},
		{Kind: frame.Probed},
		{Kind: frame.Probed, Op: 2},
	} {
		t.Run(fmt.Sprint(h.Kind, h.Op, h.Tag), func(t *testing.T) {
			s := newScript(t, Config{})
			l := s.connect(9)
			p := s.probe(0)
			s.drain(l)
			require.ErrorIs(t, s.deliver(l, h, nil), ErrProtocol)
			require.True(t, l.Down())
			s.trigger()
			require.ErrorIs(t, p.Err, ErrPeerLost)
		})
	}
}

// TestProbedLater checks that an unknown readiness of a later release counts as not ready.
func TestProbedLater(t *testing.T) {
	for _, readiness := range []uint64{3, 1 << 40} {
		s := newScript(t, Config{})
		l := s.connect(9)
		p := s.probe(0)
		s.drain(l)
		require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Probed, Op: 1, Tag: readiness}, nil))
		s.trigger()
		require.ErrorIs(t, p.Err, ErrNotReady)
		require.True(t, l.Up())
	}
}

// TestProbesFull checks that the probes of a session are bounded, and those that end make room.
func TestProbesFull(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(9)
	var all []*result
	for range maxProbes {
		all = append(all, s.probe(0))
		s.drain(l)
	}
	over := s.probe(0)
	s.trigger()
	require.ErrorIs(t, over.Err, ErrAgain)
	all[7].Cancel()
	over = s.probe(0)
	s.drain(l)
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Probed, Op: maxProbes + 1}, nil))
	s.trigger()
	require.NoError(t, over.Err)
	require.ErrorIs(t, all[7].Err, ErrCanceled)
	require.NoError(t, all[maxProbes-1].Err)
}

// TestProbeOutOfTime checks that an answer that has arrived before the callbacks run counts, as for
// a call.
func TestProbeOutOfTime(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(9)
	a, b := s.probe(time.Second), s.probe(2*time.Second)
	s.drain(l)
	s.advance(time.Second)
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Probed, Op: 1}, nil))
	s.trigger()
	require.NoError(t, a.Err)
	require.NoError(t, b.Err)
	c := s.probe(time.Second)
	s.drain(l)
	s.advance(time.Second)
	s.trigger()
	require.ErrorIs(t, c.Err, ErrTimeout)
	require.ErrorContains(t, c.Err, "no response to the probe")
}
