package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
)

// A session that is idle is small, and does whatever it is asked.
func TestIdleLink(t *testing.T) {
	key := na.Key{Len: 10, Access: na.ReadWrite}
	rows := map[string]func(s *script, l *Link){
		"nothing": func(*script, *Link) {},
		"send":    func(s *script, _ *Link) { s.send("x") },
		"send expected": func(s *script, _ *Link) {
			s.op(func(op *na.Op) error { return s.nctx.SendExpected(op, s.addr(), 3, nil) })
		},
		"receive": func(s *script, _ *Link) { s.expect(3, nil).Cancel() },
		"get":     func(s *script, _ *Link) { s.get(s.mem(10)) },
		"put":     func(s *script, _ *Link) { s.put(s.mem(10)) },
		"withdraw": func(s *script, l *Link) {
			s.op(func(op *na.Op) error { return s.nctx.Withdraw(op, l.addr(), 1) })
		},
		"abandon":    func(s *script, l *Link) { s.e.Abandon(l.addr(), 1, 7) },
		"give back":  func(s *script, l *Link) { s.e.GiveBack(l.addr(), key) },
		"claim room": func(s *script, l *Link) { s.e.ClaimRoom(l.addr(), 10_000) },
		"grant room": func(s *script, l *Link) { s.e.GrantRoom(l.addr(), 10_000) },
		"confirm": func(s *script, _ *Link) {
			peers, messages := s.e.Confirm(true)
			require.Equal(s, [2]int{1, 1}, [2]int{peers, messages})
		},
		"underway": func(s *script, _ *Link) { require.Zero(s, s.e.Underway()) },
		"gauges": func(s *script, _ *Link) {
			require.Equal(s, 1, s.e.Stats().Peers)
			require.Len(s, s.e.Peers(), 1)
		},
		"disconnect": func(s *script, l *Link) { s.e.Disconnect(l.addr(), na.ErrPeerLost) },
		"shut":       func(s *script, _ *Link) { s.nctx.Close() },
		"flow up":    func(s *script, l *Link) { s.e.Lock(); l.FlowUp(); s.e.Unlock() },
		"bytes":      func(s *script, l *Link) { s.e.Lock(); l.Heard(false); l.Heard(true); s.e.Unlock() },
		"pull":       func(s *script, l *Link) { require.Empty(s, s.drain(l)) },
		"refused":    func(s *script, l *Link) { s.e.Lock(); l.Refused(frame.Bye{Code: na.ErrClosed}); s.e.Unlock() },
		"anew": func(s *script, l *Link) {
			s.e.Lock()
			defer s.e.Unlock()
			g := peerGreeting(5)
			g.Incarnation[0]++
			_, err := s.e.Admit(s.e.routes[0].carrier, "conn", &g, true)
			require.ErrorIs(s, err, na.ErrDuplicate)
		},
		"data": func(s *script, l *Link) {
			require.NoError(s, s.place(l, frame.Header{Kind: frame.Data, Op: 1}, []byte("nobody wants it")))
		},
		"message in pieces": func(s *script, l *Link) {
			s.e.Lock()
			defer s.e.Unlock()
			h := frame.Header{Kind: frame.Unexpected, Op: 1, Credit: l.credits}
			h.SetPayload(3)
			v, err := l.Place(&h)
			require.NoError(s, err)
			l.active = nil // it takes long
			require.NoError(s, l.Placed(&v))
		},
	}
	for kind := frame.Unexpected; kind <= frame.Abandon; kind++ {
		if kind != frame.Data && kind != frame.Goaway {
			rows[kind.String()] = func(s *script, l *Link) { _ = s.deliver(l, frame.Header{Kind: kind, Op: 1, Tag: 1}, nil) }
		}
	}
	for name, do := range rows {
		t.Run(name, func(t *testing.T) {
			s := newScript(t, na.Config{Reserve: na.NoReserve})
			l := s.meet(5)
			r := s.send("so that one has been sent")
			s.drain(l)
			s.trigger()
			require.NoError(t, r.Err)
			s.pass(time.Hour)
			s.pass(time.Hour)
			require.Nil(t, l.active)
			require.Zero(t, s.e.Next(), "when an idle session is looked after")
			do(s, l)
			s.drain(l)
			for range 30 {
				s.pass(time.Second)
				s.drain(l)
				s.trigger()
			}
		})
	}
}
