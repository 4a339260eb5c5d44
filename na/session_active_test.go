package na

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// TestIdleLink checks that a session that is idle is small, and serves every request.
func TestIdleLink(t *testing.T) {
	key := Key{Len: 10, Access: ReadWrite}
	rows := map[string]func(s *script, l *session){
		"nothing": func(*script, *session) {},
		"send":    func(s *script, _ *session) { s.send("x") },
		"send expected": func(s *script, _ *session) {
			s.op(func(op *Op) error { return s.nctx.SendExpected(op, s.addr(), 3, nil) })
		},
		"receive": func(s *script, _ *session) { s.expect(3, nil).Cancel() },
		"get":     func(s *script, _ *session) { s.get(s.mem(10)) },
		"put":     func(s *script, _ *session) { s.put(s.mem(10)) },
		"withdraw": func(s *script, l *session) {
			s.op(func(op *Op) error { return s.nctx.Withdraw(op, l.addr(), 1) })
		},
		"abandon":    func(s *script, l *session) { s.e.abandonRequest(l.addr(), 1) },
		"give back":  func(s *script, l *session) { s.e.giveBack(l.addr(), key) },
		"claim room": func(s *script, l *session) { s.e.claimRoom(l.addr(), 10_000) },
		"grant room": func(s *script, l *session) { s.e.grantRoom(l.addr(), 10_000) },
		"confirm": func(s *script, _ *session) {
			peers, messages := s.e.askConfirmations(true)
			require.Equal(s, [2]int{1, 1}, [2]int{peers, messages})
		},
		"underway": func(s *script, _ *session) { require.Zero(s, s.e.countUnderway()) },
		"gauges": func(s *script, _ *session) {
			require.Equal(s, 1, s.e.collectStats().Peers)
			require.Len(s, s.e.peerStats(), 1)
		},
		"disconnect": func(s *script, l *session) { s.e.disconnectSession(l.addr(), ErrPeerLost) },
		"shut":       func(s *script, _ *session) { s.nctx.Close() },
		"flow up":    func(s *script, l *session) { s.e.Lock(); l.LaneUp(); s.e.Unlock() },
		"bytes":      func(s *script, l *session) { s.e.Lock(); l.Heard(false); l.Heard(true); s.e.Unlock() },
		"pull":       func(s *script, l *session) { require.Empty(s, s.drain(l)) },
		"refused":    func(s *script, l *session) { s.e.Lock(); l.Refused(frame.Bye{Code: ErrClosed}); s.e.Unlock() },
		"anew": func(s *script, l *session) {
			s.e.Lock()
			defer s.e.Unlock()
			g := peerGreeting(5)
			g.Incarnation[0]++
			_, err := s.e.admitHello(s.e.routes[0].carrier, "conn", &g, true)
			require.ErrorIs(s, err, ErrDuplicate)
		},
		"data": func(s *script, l *session) {
			require.NoError(s, s.deliverPiece(l, frame.Header{Kind: frame.Data, Op: 1}, []byte("nobody wants it")))
		},
		"message in pieces": func(s *script, l *session) {
			s.e.Lock()
			defer s.e.Unlock()
			h := frame.Header{Kind: frame.Unexpected, Op: 1, Credit: l.credits}
			h.SetPayload(3)
			v, err := l.Place(&h)
			require.NoError(s, err)
			l.activeState = nil // it takes long
			require.NoError(s, l.Placed(v))
		},
	}
	for kind := frame.Unexpected; kind <= frame.Abandon; kind++ {
		if kind != frame.Data && kind != frame.Goaway {
			rows[kind.String()] = func(s *script, l *session) { _ = s.deliver(l, frame.Header{Kind: kind, Op: 1, Tag: 1}, nil) }
		}
	}
	for name, do := range rows {
		t.Run(name, func(t *testing.T) {
			s := newScript(t, Config{Reserve: NoReserve})
			l := s.connect(5)
			r := s.send("so that one has been sent")
			s.drain(l)
			s.trigger()
			require.NoError(t, r.Err)
			s.advance(time.Hour)
			s.advance(time.Hour)
			require.Nil(t, l.activeState)
			require.Zero(t, s.e.Next(), "when an idle session is looked after")
			do(s, l)
			s.drain(l)
			for range 30 {
				s.advance(time.Second)
				s.drain(l)
				s.trigger()
			}
		})
	}
}
