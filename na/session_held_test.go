package na

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/heldby"
)

type heldAs heldby.State

func (h heldAs) HeldBy() heldby.State { return heldby.State(h) }

// unexpected hands the endpoint message n of the peer.
func (s *script) unexpected(l *session, n uint64) {
	s.Helper()
	require.NoError(s, s.deliver(l, frame.Header{Kind: frame.Unexpected, Op: n, Tag: n}, []byte("message")))
}

// heldContents returns the contents of the HELDs among frames.
func heldContents(all []pulledFrame) (said []heldby.State) {
	for _, p := range all {
		if p.Kind == frame.Held {
			reason, active, limit, _ := p.Held()
			said = append(said, heldby.State{Reason: heldby.Reason(reason), Active: int(active), Limit: int(limit)})
		}
	}
	return said
}

// TestHeld checks that a peer is notified of the limit that its requests wait for once they have
// waited, of each change once, and when the wait has ended.
func TestHeld(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(9)
	s.keepBusy(l)
	said := func() []heldby.State { return heldContents(s.drain(l)) }
	s.unexpected(l, 1)
	s.unexpected(l, 2)
	for range 9 { // a first look, that finds them
		s.advance(heldEvery / 9)
		require.Empty(t, said())
	}
	s.advance(heldEvery)
	require.Equal(t, []heldby.State{{Reason: heldby.NotDriven, Active: 2, Limit: 0}}, said(), "they are not received")
	s.advance(heldEvery)
	require.Empty(t, said(), "the same again")
	var envs []*Envelope
	for range 2 {
		r := s.op(s.nctx.RecvUnexpected)
		s.trigger()
		envs = append(envs, r.Envelope)
	}
	s.advance(heldEvery)
	require.Equal(t, []heldby.State{{Reason: heldby.Program, Active: 2, Limit: 0}}, said(), "received requests send no HELD")
	require.True(t, envs[0].Watch(heldAs{Reason: heldby.PerPeer, Active: 128, Limit: 128}))
	s.advance(heldEvery)
	require.Equal(t, []heldby.State{{Reason: heldby.PerPeer, Active: 128, Limit: 128}}, said())
	require.True(t, envs[0].Accept())
	s.advance(heldEvery)
	require.Equal(t, []heldby.State{{Reason: heldby.Program, Active: 1, Limit: 0}}, said())
	require.True(t, envs[1].Watch(heldAs{Reason: heldby.Total, Active: math.MaxInt, Limit: math.MaxInt}))
	s.advance(heldEvery)
	most := int(clamp32(math.MaxInt)) // the number of entries in HELD
	require.Equal(t, []heldby.State{{Reason: heldby.Total, Active: most, Limit: most}}, said())
	require.True(t, envs[1].Accept())
	s.advance(heldEvery)
	require.Equal(t, []heldby.State{{}}, said(), "it is over")
	require.Zero(t, s.e.heldDue.Load(), "nothing to look at")
	require.Empty(t, s.e.holding)
	for _, env := range envs {
		env.Free()
	}
}

// TestHeldNotSentInTime checks that requests that arrive and are accepted in time make no HELD, however many
// there are.
func TestHeldNotSentInTime(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(9)
	for n := range uint64(200) {
		s.unexpected(l, n+1)
		r := s.op(s.nctx.RecvUnexpected)
		s.advance(heldEvery / 3)
		s.trigger()
		s.unexpected(l, n+1) // one is always there
		r.Envelope.Free()
		r = s.op(s.nctx.RecvUnexpected)
		s.trigger()
		s.advance(heldEvery / 3)
		r.Envelope.Free()
		require.Empty(t, heldContents(s.drain(l)))
	}
}

// TestHeldOfAnEndedSession checks that a session that ends while its requests wait is not looked at
// any more.
func TestHeldOfAnEndedSession(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(9)
	s.unexpected(l, 1)
	s.e.Lock()
	l.Fail(ErrPeerLost)
	s.e.Unlock()
	s.advance(heldEvery)
	require.Empty(t, s.e.holding)
	r := s.op(s.nctx.RecvUnexpected)
	s.trigger()
	r.Envelope.Free()
}

// TestHeldNamedInErrors checks that the origin keeps the last HELD of the peer, shows it, and names it in
// the error of calls that end at their deadline.
func TestHeldNamedInErrors(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(1)
	call := func(tag Tag) *result {
		return s.op(func(op *Op) error {
			return s.nctx.Upper().Call(op, CallSpec{To: s.addr(), Tag: tag, Msg: make([]byte, 8), Buf: make([]byte, 8), By: Deadline{At: s.clock + time.Second}})
		})
	}
	left, waits := call(1), call(2)
	s.drain(l)
	require.NoError(t, s.deliver(l, frame.HeldHeader(heldby.Method, 7, 7), nil))
	require.NoError(t, s.deliver(l, frame.HeldHeader(heldby.PerPeer, 128, 128), nil))
	require.Equal(t, "it handles 128 requests of this process, its limit (hg.Config.MaxActivePerPeer)", s.nctx.Peers()[0].HeldBy)
	s.advance(time.Second)
	s.trigger()
	require.ErrorIs(t, waits.Err, ErrTimeout)
	require.Equal(t, []Fate{NotRun, MaybeRan}, []Fate{waits.Fate, left.Fate})
	require.EqualError(t, waits.Err, "na: call script://peer: all 1 envelopes of the target are in use, 1 requests queued: "+
		"it handles 128 requests of this process, its limit (hg.Config.MaxActivePerPeer)")
	require.EqualError(t, left.Err, "na: call script://peer: no response from the target, where this process's requests are queued: "+
		"it handles 128 requests of this process, its limit (hg.Config.MaxActivePerPeer)")
	require.NoError(t, s.deliver(l, frame.HeldHeader(heldby.None, 0, 0), nil))
	require.Empty(t, s.nctx.Peers()[0].HeldBy)
	late := call(3)
	s.advance(time.Second)
	s.trigger()
	require.NotContains(t, late.Err.Error(), "MaxActive")
}

func TestHeldHostile(t *testing.T) {
	for _, h := range []frame.Header{{Kind: frame.Held, Tag: 1}, {Kind: frame.Held, Tag: 1 << 32}} {
		t.Run(fmt.Sprint(h.Op, h.Tag), func(t *testing.T) {
			s := newScript(t, Config{})
			l := s.connect(9)
			require.ErrorIs(t, s.deliver(l, h, nil), ErrProtocol)
			require.True(t, l.Down())
		})
	}
	s := newScript(t, Config{})
	l := s.connect(9)
	for _, reason := range []uint64{0, 1, 2, 3, 4, 5, 6, 7, 8, 1 << 32} {
		tag := uint64(1<<64 - 1)
		if reason == 0 {
			tag = 0
		}
		require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Held, Op: reason, Tag: tag}, nil))
		held := s.nctx.Peers()[0].HeldBy
		require.Equal(t, reason == 0, held == "")
		if reason > 7 { // one of a later release
			require.Equal(t, "its program has not accepted them", held)
		}
	}
}
