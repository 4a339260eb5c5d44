package na

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// TestMessageVersions checks that a session uses the newest header that both layers above read; a
// request is converted as it leaves, also one that waited before the session was there.
func TestMessageVersions(t *testing.T) {
	n := func(oldest, newest uint16) frame.Range { return frame.Range{Oldest: oldest, Newest: newest} }
	for _, row := range []struct {
		theirs frame.Range
		want   string
	}{{n(4, 4), "message"}, {n(3, 4), "message"}, {n(4, 5), "message"}, {n(2, 3), "3essage"}, {frame.Range{}, "message"}, {n(5, 6), ""}, {n(1, 2), ""}} {
		t.Run(row.theirs.String(), func(t *testing.T) {
			s := newScript(t, Config{})
			s.nctx.Class().UseMessages(3, 4, func(msg []byte, version uint16) {
				msg[0] = '0' + byte(version)
			})
			r := s.send("message")
			l := s.dialed[0]
			g := peerGreeting(5)
			g.Messages = row.theirs
			err := s.hello(l, g)
			if row.want == "" {
				require.ErrorIs(t, err, ErrVersion)
				require.ErrorContains(t, err, "no common version of RPC headers: the dialing side speaks 3 to 4")
				s.trigger()
				require.ErrorIs(t, r.Err, ErrUnreachable)
				require.Equal(t, NotRun, r.Fate)
				return
			}
			require.NoError(t, err)
			all := s.drain(l)
			require.Equal(t, []string{"UNEXPECTED"}, kinds(all))
			require.Equal(t, row.want, string(all[0].payload))
		})
	}
}

// TestSkippedFrames checks that an unknown frame of an optional kind changes nothing but the credit
// that it carries, and that one of a mandatory kind ends its session, and no other.
func TestSkippedFrames(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(9)
	r := s.send("x")
	s.drain(l)
	later := frame.Header{Kind: frame.FirstOptional + 72, Flags: 0x7e, Op: 1 << 60, Tag: 7}
	require.NoError(t, s.deliver(l, later, []byte("of a later release")))
	s.e.Lock()
	later.SetPayload(18)
	later.Context, later.Credit = uint16(s.e.id), l.credits
	v, err := l.Place(&later) // as a carrier does that gives payloads in pieces
	if err == nil {
		v.CopyIn(0, []byte("of a later release"))
		err = l.Placed(v)
	}
	s.e.Unlock()
	require.NoError(t, err)
	s.trigger()
	require.NoError(t, r.Err)
	require.True(t, l.Up())
	require.Zero(t, s.nctx.Stats().Violations)
	require.ErrorIs(t, s.deliver(l, frame.Header{Kind: 29}, nil), ErrProtocol)
	require.True(t, l.Down())
}
