package na

import (
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

func (s *script) sendBy(at time.Duration) *result {
	s.Helper()
	return s.op(func(op *Op) error {
		return s.nctx.SendUnexpectedBy(op, s.addr(), 0, make([]byte, 8), Deadline{At: at, Field: 2})
	})
}

// TestDeadlineStampedWhenSent checks that a message carries the time left when it is sent,
// however long it has waited for an envelope.
func TestDeadlineStampedWhenSent(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(1)
	s.clock = time.Second
	first := s.sendBy(s.clock + 50*time.Millisecond)
	waits := s.sendBy(s.clock + 50*time.Millisecond)
	late := s.sendBy(s.clock + 20*time.Millisecond)
	far := s.sendBy(s.clock + 1000*time.Hour)
	none := s.send("12345678")
	next := func() pulledFrame {
		t.Helper()
		p, ok := s.pull(l)
		require.True(t, ok)
		require.Equal(t, frame.Unexpected, p.Kind)
		require.Len(t, p.payload, 8)
		return p
	}
	left := func() time.Duration {
		t.Helper()
		p := next()
		require.NotZero(t, p.Flags&frame.FlagTimed)
		return time.Duration(binary.LittleEndian.Uint32(p.payload[2:])) * time.Microsecond
	}
	require.Equal(t, 50*time.Millisecond, left())
	require.Empty(t, s.drain(l), "the others wait for an envelope")

	s.clock += 49999500 * time.Nanosecond // half a microsecond is left
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Credit, Credit: 5}, nil))
	require.Equal(t, time.Microsecond, left(), "0 would mean that there is no deadline")
	require.Equal(t, math.MaxUint32*time.Microsecond, left(), "what does not fit is as much as fits")
	p := next()
	require.Zero(t, p.Flags&frame.FlagTimed)
	require.Equal(t, "12345678", string(p.payload))
	s.trigger()
	require.NoError(t, first.Err)
	require.NoError(t, waits.Err)
	require.NoError(t, far.Err)
	require.NoError(t, none.Err)
	require.ErrorIs(t, late.Err, ErrTimeout)
	require.Equal(t, NotRun, late.Fate)
	require.EqualValues(t, 4, l.used, "the envelope of what was not sent is free")
}

func TestDeadlineOutsideTheMessage(t *testing.T) {
	s := newScript(t, Config{})
	for _, field := range []int{-1, 5, math.MaxInt} {
		err := s.nctx.SendUnexpectedBy(s.nctx.NewOp(nil), s.addr(), 0, make([]byte, 8), Deadline{At: time.Hour, Field: field})
		require.ErrorIs(t, err, ErrInvalid)
	}
}

// TestDeadlineArrival checks that the receiver records the time of arrival of a message with a
// deadline, also when no receive takes it for a while, and does not record it of others.
func TestDeadlineArrival(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(4)
	s.clock = 3 * time.Second
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Unexpected, Flags: frame.FlagTimed}, []byte("m")))
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Unexpected}, []byte("m")))
	s.clock = 5 * time.Second
	for _, want := range []time.Duration{3 * time.Second, 0} {
		r := s.op(s.nctx.RecvUnexpected)
		s.trigger()
		require.Equal(t, want, r.Envelope.Arrived)
		r.Envelope.Free()
	}
}
