package na

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// idleFor is Config.IdleTimeout of these tests.
const idleFor = time.Minute

// leavingSession returns a session that has sent its peer a request to end.
func (s *script) leavingSession() *session {
	s.Helper()
	l := s.connect(5)
	s.drain(l)
	s.waitForLeave(l)
	return l
}

// waitForLeave lets time pass until l sends the request to end.
func (s *script) waitForLeave(l *session) {
	s.Helper()
	for range 6 {
		if s.advance(idleFor); l.state == stateLeaving {
			break
		}
	}
	all := s.drain(l)
	require.Equal(s, "LEAVE", all[0].Kind.String())
	require.EqualValues(s, l.received, all[0].Op)
	require.EqualValues(s, l.receivedExpected, all[0].Tag)
}

var goodbye = frame.Header{Kind: frame.Goaway, Tag: uint64(byeIdle)}

// TestIdleLeave checks that a session ends after IdleTimeout, without a notification. An operation that
// begins before the answer leaves in this session, or in the next one.
func TestIdleLeave(t *testing.T) {
	s := newScript(t, Config{IdleTimeout: idleFor})
	l := s.leavingSession()
	r := s.send("held")
	m := s.mem(10)
	g := s.get(m)
	require.Empty(t, s.drain(l))
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Stay}, nil))
	require.ElementsMatch(t, []string{"UNEXPECTED", "GET"}, kinds(s.drain(l)))
	g.Cancel()
	s.trigger()
	require.NoError(t, r.Err)
	require.Error(t, s.deliver(l, frame.Header{Kind: frame.Stay}, nil), "that was the answer")
	s.trigger()

	s = newScript(t, Config{IdleTimeout: idleFor})
	s.nctx.OnFault(func(Addr, error) { t.Error("a fault is reported") })
	l = s.leavingSession()
	r, g = s.send("held"), s.get(s.mem(10))
	e := s.expect(9, make([]byte, 3))
	withdraw := s.op(func(op *Op) error { return s.nctx.SendExpected(op, s.addr(), 3, []byte("x")) })
	require.Empty(t, s.drain(l))
	require.NoError(t, s.deliver(l, goodbye, nil))
	require.True(t, l.Down())
	require.Len(t, s.dialed, 2)
	n := s.dialed[1]
	require.NoError(t, s.hello(n, peerGreeting(5)))
	require.ElementsMatch(t, []string{"UNEXPECTED", "GET", "EXPECTED"}, kinds(s.drain(n)))
	require.NoError(t, s.deliver(n, frame.Header{Kind: frame.Expected, Tag: 9}, []byte("yes")))
	g.Cancel()
	s.trigger()
	for _, r := range []*result{r, e, withdraw} {
		require.NoError(t, r.Err)
		require.Equal(t, 1, r.ended)
	}
	st := s.nctx.Stats()
	require.EqualValues(t, 1, st.PeersIdle)
	require.Zero(t, st.PeersLost+st.PeersLeft)
}

// TestIdleLeaveBoundOperation checks that an operation bound to the session is not sent in the new one: the peer
// may have restarted since.
func TestIdleLeaveBoundOperation(t *testing.T) {
	s := newScript(t, Config{IdleTimeout: idleFor})
	l := s.leavingSession()
	bound := l.addr()
	require.NoError(t, s.deliver(l, goodbye, nil))
	send := func() *result {
		return s.op(func(op *Op) error { return s.nctx.SendUnexpected(op, bound, 7, nil) })
	}
	r := send()
	require.NoError(t, s.hello(s.dialed[1], peerGreeting(5)))
	s.drain(s.dialed[1])
	s.trigger()
	require.NoError(t, r.Err)
	s.e.Lock()
	s.dialed[1].Fail(ErrPeerLost)
	s.e.Unlock()

	s.advance(time.Second)
	r = send()
	g := peerGreeting(5)
	g.Incarnation[0]++
	require.NoError(t, s.hello(s.dialed[2], g))
	require.Empty(t, s.drain(s.dialed[2]))
	s.trigger()
	require.ErrorIs(t, r.Err, ErrPeerLost)
	require.Equal(t, NotRun, r.Fate)
	require.ErrorIs(t, send().Err, nil)
	s.trigger()
}

// TestIdleLeaveRefused checks that a side refuses while anything is open there, or in flight to the
// peer.
func TestIdleLeaveRefused(t *testing.T) {
	leave := func(s *script, l *session, op, tag uint64) string {
		require.NoError(s, s.deliver(l, frame.Header{Kind: frame.Leave, Op: op, Tag: tag}, nil))
		if l.Down() {
			return fmt.Sprint("ended: ", s.byes[l].Code)
		}
		return fmt.Sprint(kinds(s.drain(l)))
	}
	s := newScript(t, Config{})
	l := s.connect(5)
	s.send("one-way")
	s.drain(l)
	require.Equal(t, "[STAY]", leave(s, l, 0, 0), "one-way message")
	s.op(func(op *Op) error { return s.nctx.SendExpected(op, s.addr(), 3, nil) })
	s.drain(l)
	require.Equal(t, "[STAY]", leave(s, l, 1, 0), "answer")
	r := s.expect(4, nil)
	require.Equal(t, "[STAY]", leave(s, l, 1, 1), "receive")
	r.Cancel()
	s.trigger()
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Unexpected, Op: 1, Tag: 9}, nil))
	require.Equal(t, "[STAY]", leave(s, l, 1, 1), "request")
	in := s.op(func(op *Op) error { return s.nctx.RecvUnexpected(op) })
	s.trigger()
	in.Envelope.Accept()
	require.Equal(t, "[STAY]", leave(s, l, 1, 1), "request in use")
	in.Envelope.Free()
	mem, err := s.dom.cls.RegisterFor(l.addr(), ReadOnly, make([]byte, 8))
	require.NoError(t, err)
	require.Equal(t, "[STAY]", leave(s, l, 1, 1), "memory for the session")
	s.op(func(op *Op) error { return s.nctx.Deregister(op, mem) })
	s.trigger()
	require.Equal(t, "[PING STAY]", func() string { l.sendPing(); return leave(s, l, 1, 1) }(), "something to send")
	require.Equal(t, "ended: "+byeIdle.Error(), leave(s, l, 1, 1))
	require.Zero(t, s.nctx.Stats().PeersLost+s.nctx.Stats().PeersLeft)
	require.Empty(t, s.nctx.Upper().Unconfirmed())
}

// TestLeastRecent checks that of the sessions that make room the one that has been idle for longest
// ends first; one that its peer keeps is not tried again soon.
func TestLeastRecent(t *testing.T) {
	budget := GuaranteedBytes(3, 4, 4096)
	s := newScript(t, Config{Envelopes: 4, Budget: budget})
	admit := func(inc byte) (*session, error) {
		g := peerGreeting(5)
		g.Listen, g.Incarnation = "", [16]byte{inc}
		s.e.Lock()
		defer s.e.Unlock()
		return s.e.admitHello(scriptCarrier{s}, "conn", &g, false)
	}
	var ls []*session
	for inc := range byte(3) {
		l, err := admit(inc + 1)
		require.NoError(t, err)
		ls = append(ls, l)
		s.advance(time.Second)
	}
	s.advance(time.Hour)
	require.NoError(t, s.deliver(ls[0], frame.Header{Kind: frame.Ping}, nil)) // used again
	s.drain(ls[0])
	_, err := admit(4)
	require.ErrorIs(t, err, ErrAgain)
	require.Equal(t, []string{"LEAVE"}, kinds(s.drain(ls[1])))
	require.NoError(t, s.deliver(ls[1], frame.Header{Kind: frame.Stay}, nil))
	s.advance(time.Second)
	r := s.send("to a peer that is dialled")
	require.Empty(t, s.dialed, "there is no room yet")
	require.Equal(t, []string{"LEAVE"}, kinds(s.drain(ls[2])))
	require.NoError(t, s.deliver(ls[2], goodbye, nil))
	s.advance(time.Millisecond)
	require.Len(t, s.dialed, 1, "at once")
	require.EqualValues(t, 4, s.dialed[0].guaranteed)
	require.NoError(t, s.hello(s.dialed[0], peerGreeting(5)))
	s.drain(s.dialed[0])
	s.trigger()
	require.NoError(t, r.Err)
	require.LessOrEqual(t, s.nctx.Stats().Reserved, budget)

	// Where nothing is idle a peer is refused.
	for _, l := range []*session{ls[0], ls[1], s.dialed[0]} {
		s.keepBusy(l)
	}
	_, err = admit(5)
	require.ErrorIs(t, err, ErrNoMemory)
}
