package na

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// TestUnconfirmed checks which frames confirm messages that have no answer, and which messages a
// session leaves unconfirmed when it ends.
func TestUnconfirmed(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(s *script, l *session)
		want int
	}{
		"nothing": {func(*script, *session) {}, 4},
		"PONG of an earlier PING": {func(s *script, l *session) {
			require.NoError(s, s.deliver(l, frame.Header{Kind: frame.Pong, Op: 3}, nil))
		}, 1},
		"PONG for what was never sent": {func(s *script, l *session) {
			require.NoError(s, s.deliver(l, frame.Header{Kind: frame.Pong, Op: 6}, nil))
		}, 4},
		"credit": {func(s *script, l *session) {
			require.NoError(s, s.deliver(l, frame.Header{Kind: frame.Credit, Credit: 9 + 2}, nil))
		}, 2},
		"lost": {func(s *script, l *session) { s.e.Lock(); l.Fail(ErrPeerLost); s.e.Unlock() }, 4},
		"left, and has said what it has not taken": {func(s *script, l *session) {
			s.e.Lock()
			l.Refused(frame.Bye{Code: ErrClosed, Next: 4})
			s.e.Unlock()
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t, Config{Reserve: NoReserve})
			l := s.connect(9)
			for range 4 {
				s.send("nobody answers")
			}
			s.drain(l)
			s.expect(8, nil) // a call
			s.op(func(op *Op) error { return s.nctx.SendUnexpected(op, s.addr(), 8, nil) })
			s.drain(l)
			s.trigger()
			c.end(s, l)
			var want []Unconfirmed
			if c.want > 0 {
				want = []Unconfirmed{{Peer: l.addr(), Messages: c.want}}
			}
			require.Equal(t, want, s.e.listUnconfirmed())
		})
	}
}

// TestUnconfirmedRefusal checks that the refusal of a request that arrived too late, which leaves
// after the question of Confirm, delays no wait.
func TestUnconfirmedRefusal(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(9)
	answer := func() {
		s.op(func(op *Op) error { return s.nctx.SendExpected(op, l.addr(), 7, nil) })
		s.drain(l)
	}
	answer()
	peers, messages := s.e.askConfirmations(true)
	require.Equal(t, [2]int{1, 1}, [2]int{peers, messages})
	ping := s.drain(l)
	require.Len(t, ping, 1)
	answer()
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Pong, Op: ping[0].Op, Tag: ping[0].Tag}, nil))
	answer()
	peers, messages = s.e.askConfirmations(true)
	require.Equal(t, [2]int{0, 0}, [2]int{peers, messages})
	require.Empty(t, s.e.listUnconfirmed())
}

// TestUnconfirmedPeers checks that a limited number of peers is named; the messages of the others
// are counted together.
func TestUnconfirmedPeers(t *testing.T) {
	var all []Unconfirmed
	for i := range 3 * maxUnconfirmed {
		all = addUnconfirmed(all, MakeAddr(fmt.Sprintf("script://%d", i), 0), 2)
	}
	all = addUnconfirmed(all, MakeAddr("script://0", 0), 1)
	all = addUnconfirmed(all, MakeAddr("script://none", 0), 0)
	require.Len(t, all, maxUnconfirmed+1)
	require.Equal(t, 3, all[0].Messages)
	require.Equal(t, Unconfirmed{Messages: 4 * maxUnconfirmed}, all[maxUnconfirmed])
}
