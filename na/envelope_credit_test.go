package na

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// sendPatient sends a message that may wait for an envelope.
func (s *script) sendPatient(data string) *result {
	s.Helper()
	return s.op(func(op *Op) error {
		op.SetPatient(true)
		return s.nctx.SendUnexpected(op, s.addr(), 7, []byte(data))
	})
}

// credit notifies l that the peer has n more free envelopes.
func (s *script) credit(l *session, n uint32) {
	s.Helper()
	require.NoError(s, s.deliver(l, frame.Header{Kind: frame.Credit, Credit: l.credits + n}, nil))
}

// TestPolicies checks that under Fail and Block a message without an envelope ends at once, and one
// that may wait does (G-T7, G12).
func TestPolicies(t *testing.T) {
	for _, policy := range []Policy{Fail, Block} {
		s := newScript(t, Config{OnNoCredit: policy, SendQueue: 2})
		early := []*result{s.send("a"), s.send("b")} // the session is not up: the peer's guarantee is not known yet
		over := s.send("c")
		waits := s.sendPatient("d")
		s.trigger()
		require.ErrorIs(t, over.Err, ErrNoCredit)
		require.ErrorContains(t, over.Err, "send queue full: 2 messages to the peer (na.Config.SendQueue)", "the local queue is full")
		require.Zero(t, early[1].ended)
		l := s.dialed[0]
		s.drain(l)
		require.NoError(t, s.hello(l, peerGreeting(1)))
		require.Equal(t, []string{"UNEXPECTED"}, kinds(s.drain(l)))
		s.trigger()
		require.NoError(t, early[0].Err)
		require.ErrorIs(t, early[1].Err, ErrNoCredit)
		require.Equal(t, NotRun, early[1].Fate)
		require.Zero(t, waits.ended)
		now := s.send("e")
		s.trigger()
		require.ErrorIs(t, now.Err, ErrNoCredit, "at once")
		require.EqualValues(t, 3, s.nctx.Stats().Stalls)
		s.credit(l, 1)
		all := s.drain(l)
		require.Equal(t, []string{"UNEXPECTED"}, kinds(all))
		require.Equal(t, "d", string(all[0].payload))
		s.trigger()
		require.Equal(t, 1, waits.ended)
		require.NoError(t, waits.Err)
		s.credit(l, 1)
		next := s.send("f")
		s.drain(l)
		s.trigger()
		require.NoError(t, next.Err)
	}
}

// TestReserve checks LAM's rule: the last envelope is for an operation that waits, which then waits
// until there is another (G10, G-T3, G-T6).
func TestReserve(t *testing.T) {
	s := newScript(t, Config{OnNoCredit: Block, Reserve: LiteralReserve})
	l := s.connect(2)
	first := s.send("a")
	refused := s.send("b")
	s.drain(l)
	s.trigger()
	require.NoError(t, first.Err)
	require.ErrorIs(t, refused.Err, ErrNoCredit, "the last one is not for it")
	last := s.sendPatient("c")
	require.Equal(t, []string{"UNEXPECTED"}, kinds(s.drain(l)), "it is transmitted")
	s.trigger()
	require.Zero(t, last.ended, "and waits")
	behind := s.sendPatient("d")
	require.Empty(t, s.drain(l))
	s.credit(l, 1)
	s.trigger()
	require.Equal(t, 1, last.ended)
	require.NoError(t, last.Err)
	require.EqualValues(t, 2, last.ID)
	require.EqualValues(t, 1, last.N)
	require.Equal(t, []string{"UNEXPECTED"}, kinds(s.drain(l)))
	s.trigger()
	require.Zero(t, behind.ended)
	behind.Cancel()
	s.trigger()
	require.NoError(t, behind.Err, "it has left")
	require.EqualValues(t, 3, behind.ID, "and can be taken back")
	require.EqualValues(t, 1, behind.N)
	require.Equal(t, l.addr(), behind.Addr)
	require.Empty(t, s.drain(l), "the peer has nothing to stop")
	s.credit(l, 1)
	again := s.sendPatient("e")
	s.drain(l)
	s.e.Lock()
	l.Fail(ErrPeerLost)
	s.e.Unlock()
	s.trigger()
	require.ErrorIs(t, again.Err, ErrPeerLost)
	require.Equal(t, MaybeRan, again.Fate)
	require.Equal(t, 1, again.ended)

	one := newScript(t, Config{OnNoCredit: Fail, Reserve: LiteralReserve})
	l = one.connect(1)
	never := one.send("x")
	one.trigger()
	require.ErrorIs(t, never.Err, ErrNoCredit, "one envelope leaves none for a send that does not wait")
	canceled := one.sendPatient("y") // canceled before it has left: the envelope is there again
	canceled.Cancel()
	one.trigger()
	require.Equal(t, NotRun, canceled.Fate)
	require.Equal(t, 1, l.freeEnvelopes())
}

// TestHonestReserve checks that HonestReserve needs a peer that keeps the hidden envelope; else it
// is no rule at all.
func TestHonestReserve(t *testing.T) {
	s := newScript(t, Config{OnNoCredit: Block, Reserve: HonestReserve, Envelopes: 3})
	l := s.connect(1)
	sent := s.send("x")
	s.drain(l)
	s.trigger()
	require.NoError(t, sent.Err, "the peer keeps no hidden one: its only envelope is for any send")
	g := l.buildGreeting()
	require.EqualValues(t, 4, g.Envelopes, "one more than is advertised")
	require.NotZero(t, g.Features&frame.FeatureReserve)
	require.Equal(t, 3, s.nctx.Limits().Envelopes)
	require.Equal(t, GuaranteedBytes(1, 4, 4096), s.nctx.Stats().Reserved)
}

// TestProbe checks that waiting messages request the peer's credit, in case a credit frame was lost
// (G20, G-T18).
func TestProbe(t *testing.T) {
	s := newScript(t, Config{Probe: 100 * time.Millisecond, PeerTimeout: time.Hour})
	l := s.connect(1)
	s.send("a")
	s.drain(l)
	waits := s.send("b")
	s.advance(99 * time.Millisecond)
	require.Empty(t, s.drain(l))
	s.advance(time.Millisecond)
	require.Equal(t, []string{"PING"}, kinds(s.drain(l)))
	s.advance(50 * time.Millisecond)
	require.Empty(t, s.drain(l), "not sooner than that again")
	s.advance(50 * time.Millisecond)
	require.Equal(t, []string{"PING"}, kinds(s.drain(l)))
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Pong, Credit: l.credits + 1}, nil))
	require.Equal(t, []string{"UNEXPECTED"}, kinds(s.drain(l)))
	s.trigger()
	require.NoError(t, waits.Err)
	s.advance(time.Second)
	require.Empty(t, s.drain(l), "no message waits")
	at := s.e.Next()
	require.True(t, at == 0 || at > s.clock+time.Minute, "no timer at %v, it is %v", at, s.clock)
}

// TestNeedAndWant checks the two sides' Need and Want (G7, G-T10): a peer that cannot give what is
// needed, or wants more than there is, is refused with an error that states it, and no more is
// reserved than it wants.
func TestNeedAndWant(t *testing.T) {
	each := envelopeBytes(4096)
	s := newScript(t, Config{Envelopes: 8, Budget: 23 * each, Need: 3, Want: 5})
	admit := func(inc byte, offers, need, want uint32) (*session, error) {
		g := peerGreeting(offers)
		g.Listen, g.Incarnation, g.Need, g.Want = "", [16]byte{inc}, need, want
		s.e.Lock()
		defer s.e.Unlock()
		return s.e.admitHello(scriptCarrier{s}, "conn", &g, false)
	}
	_, err := admit(1, 2, 0, 0)
	require.ErrorIs(t, err, ErrNoMemory)
	require.ErrorContains(t, err, "the peer guarantees 2 envelopes, want at least 3 (na.Config.Need)")
	_, err = admit(2, 3, 9, 0)
	require.ErrorIs(t, err, ErrNoMemory)
	require.ErrorContains(t, err, "the peer needs 9 envelopes, limit 8 (na.Config.Envelopes)")
	require.Zero(t, s.nctx.Stats().Reserved, "a refused peer takes nothing")
	l, err := admit(3, 3, 2, 6)
	require.NoError(t, err)
	require.EqualValues(t, 6, l.buildGreeting().Envelopes)
	require.EqualValues(t, 3, l.buildGreeting().Need)
	require.EqualValues(t, 5, l.buildGreeting().Want)
	s.keepBusy(l)
	l, err = admit(4, 3, 0, 0)
	require.NoError(t, err)
	s.keepBusy(l)
	require.Equal(t, 16*each, s.nctx.Stats().Reserved)
	_, err = admit(5, 3, 7, 0)
	require.ErrorContains(t, err, "want 8 of 4160 bytes, at least 7, have 6 with 29120 of 95680 bytes left (na.Config.Budget)")
	l, err = admit(6, 3, 6, 0)
	require.NoError(t, err)
	require.EqualValues(t, 6, l.buildGreeting().Envelopes)
	require.Equal(t, 23*each, s.nctx.Stats().Reserved)

	for _, c := range []struct {
		offers, need uint32
		want         string
	}{{2, 0, "the peer guarantees 2 envelopes, want at least 3"}, {3, 9, "the peer needs 9 envelopes (its na.Config.Need), 8 are guaranteed"}} {
		s := newScript(t, Config{Envelopes: 8, Need: 3})
		r := s.send("x")
		l := s.dialed[0]
		s.drain(l)
		g := peerGreeting(c.offers)
		g.Need = c.need
		require.Error(t, s.hello(l, g))
		s.trigger()
		require.ErrorIs(t, r.Err, ErrUnreachable)
		require.ErrorContains(t, r.Err, c.want)
		require.Equal(t, NotRun, r.Fate)
	}
}

// TestNeedWhileDialing checks that a refused connection of a peer that wants more than there is
// does not affect our own connection to the same peer, which is being dialed.
func TestNeedWhileDialing(t *testing.T) {
	s := newScript(t, Config{Envelopes: 8})
	r := s.send("x")
	l := s.dialed[0]
	g := peerGreeting(3)
	g.Listen, g.Need = scriptPeer, 9
	for i := range g.Incarnation {
		g.Incarnation[i] = 0xff // greater than ours: theirs would stay
	}
	s.e.Lock()
	_, err := s.e.admitHello(scriptCarrier{s}, "conn", &g, true)
	s.e.Unlock()
	require.ErrorContains(t, err, "the peer needs 9 envelopes (its na.Config.Need), 8 are guaranteed")
	require.Empty(t, s.cuts[l])
	g.Need = 0
	s.drain(l)
	require.NoError(t, s.hello(l, g))
	s.drain(l)
	s.trigger()
	require.Equal(t, 1, r.ended)
	require.NoError(t, r.Err)
}

// TestMinEnvelopes checks that MinEnvelopes refuses a peer to which no more could be guaranteed.
func TestMinEnvelopes(t *testing.T) {
	s := newScript(t, Config{Envelopes: 8, MinEnvelopes: 4, Budget: GuaranteedBytes(1, 8, 4096) + GuaranteedBytes(1, 3, 4096)})
	admit := func(inc byte, want uint32) error {
		t.Helper()
		g := peerGreeting(5)
		g.Listen, g.Incarnation, g.Want = "", [16]byte{inc}, want
		s.e.Lock()
		defer s.e.Unlock()
		l, err := s.e.admitHello(scriptCarrier{s}, "conn", &g, false)
		if err == nil {
			l.views++ // it is not idle
		}
		return err
	}
	require.NoError(t, admit(1, 0))
	require.ErrorContains(t, admit(2, 0), "at least 4")
	require.NoError(t, admit(2, 3), "it wants no more than there is")
}

// TestPeerStats checks that HighWater is what the program needs (G-T25, G22), and that the gauges
// of a session show the rest.
func TestPeerStats(t *testing.T) {
	s := newScript(t, Config{Envelopes: 6})
	l := s.connect(10)
	for range 17 {
		s.send("x")
	}
	s.drain(l)
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Unexpected}, []byte("y")))
	require.Equal(t, []PeerStats{{
		Addr: l.addr(), Transport: "script", Offered: 6, Held: 1, HeldMax: 1, Bytes: 7 * 4160, Promised: 10, Free: 0, Queued: 7, HighWater: 17, Stalls: 7,
	}}, s.nctx.Peers())
	s.credit(l, 17)
	s.drain(l)
	for range 12 {
		s.send("x")
	}
	require.Equal(t, 17, s.nctx.Peers()[0].HighWater, "12 at a time are less")
	require.Equal(t, 12-10, s.nctx.Peers()[0].Queued)
	require.Equal(t, 17, s.nctx.Stats().HighWater)
	s.e.Lock()
	l.Fail(ErrPeerLost)
	s.e.Unlock()
	require.Empty(t, s.nctx.Peers())
	require.Equal(t, 17, s.nctx.Stats().HighWater, "it is remembered")
	r := s.op(func(op *Op) error { return s.nctx.RecvUnexpected(op) })
	s.trigger()
	r.Envelope.Free()
}

// TestCreditBatch checks that CreditBatch freed envelopes make a frame of their own (G19, G-T16),
// as does the last envelope that the peer has credit for.
func TestCreditBatch(t *testing.T) {
	for _, c := range []struct{ batch, frames int }{{0, 4}, {1, 8}, {3, 2}, {8, 1}} {
		s := newScript(t, Config{Envelopes: 8, CreditBatch: c.batch})
		l := s.connect(4)
		var envs []*Envelope
		for range 7 { // one is left
			require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Unexpected}, nil))
			r := s.op(func(op *Op) error { return s.nctx.RecvUnexpected(op) })
			s.trigger()
			envs = append(envs, r.Envelope)
		}
		s.drain(l)
		frames := 0
		for _, env := range envs {
			env.Free()
			frames += len(s.drain(l))
		}
		require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Unexpected}, nil))
		r := s.op(func(op *Op) error { return s.nctx.RecvUnexpected(op) })
		s.trigger()
		r.Envelope.Free()
		frames += len(s.drain(l))
		require.Equal(t, c.frames, frames, "CREDIT frames with CreditBatch %d", c.batch)
	}
}

// TestCreditWhenUsedUp checks that a peer that has used all its credit is notified of free
// envelopes, however few.
func TestCreditWhenUsedUp(t *testing.T) {
	s := newScript(t, Config{Envelopes: 8, CreditBatch: 8})
	l := s.connect(4)
	for range 7 {
		require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Unexpected}, nil))
	}
	for range 2 {
		r := s.op(func(op *Op) error { return s.nctx.RecvUnexpected(op) })
		s.trigger()
		r.Envelope.Free()
	}
	require.Empty(t, s.drain(l))
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Unexpected}, nil)) // the last that it has credit for
	all := s.drain(l)
	require.Equal(t, []string{"CREDIT"}, kinds(all))
	require.EqualValues(t, 10, all[0].Credit)
	for range 6 {
		r := s.op(func(op *Op) error { return s.nctx.RecvUnexpected(op) })
		s.trigger()
		r.Envelope.Free()
	}
}

// TestReserveReturned checks that a peer that exits with a full queue gives its reserve back when
// its messages have been dealt with, ten thousand times (G21, G-T19).
func TestReserveReturned(t *testing.T) {
	t.Parallel()
	const g = 4
	s := newScript(t, Config{Envelopes: g, Budget: 2 * GuaranteedBytes(1, g, 4096)})
	for i := range 10000 {
		gr := peerGreeting(5)
		gr.Listen, gr.Incarnation = "", [16]byte{byte(i), byte(i >> 8), 1}
		s.e.Lock()
		l, err := s.e.admitHello(scriptCarrier{s}, "conn", &gr, false)
		s.e.Unlock()
		require.NoError(t, err, "cycle %d", i)
		for range g {
			require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Unexpected}, []byte("x")))
		}
		s.e.Lock()
		l.Fail(ErrPeerLost)
		s.e.Unlock()
		require.Equal(t, GuaranteedBytes(1, g, 4096), s.nctx.Stats().Reserved)
		for range g {
			r := s.op(func(op *Op) error { return s.nctx.RecvUnexpected(op) })
			s.trigger()
			r.Envelope.Free()
		}
		require.Zero(t, s.nctx.Stats().Reserved, "cycle %d", i)
		delete(s.cuts, l)
		if i%100 == 0 {
			s.advance(time.Second) // the tick removes the sessions that have ended
		}
	}
	require.Empty(t, s.e.sessions)
	require.Empty(t, s.e.names)
	require.LessOrEqual(t, len(s.e.freeEnvs), g)
}

// TestExpedited checks that an expedited message goes first and has one envelope more; the receiver
// takes no second one, and credits the first free envelope to the peer.
func TestExpedited(t *testing.T) {
	s := newScript(t, Config{Envelopes: 8, SendQueue: 2, OnNoCredit: Fail})
	l := s.connect(2)
	expedite := func(data string) *result {
		return s.op(func(op *Op) error {
			op.SetExpedited(true)
			return s.nctx.SendUnexpected(op, s.addr(), 7, []byte(data))
		})
	}
	s.send("a")
	s.send("b")
	require.Len(t, s.drain(l), 2)
	s.sendPatient("c")
	first, second, third := expedite("x"), expedite("y"), expedite("z")
	all := s.drain(l)
	require.Equal(t, []string{"UNEXPECTED"}, kinds(all))
	require.Equal(t, "x", string(all[0].payload))
	s.trigger()
	require.NoError(t, first.Err)
	require.Equal(t, []int{1, 0, 0}, []int{first.ended, second.ended, third.ended})
	require.Equal(t, []int{2, 0, 3}, []int{s.nctx.Peers()[0].Promised, s.nctx.Peers()[0].Free, s.nctx.Peers()[0].Queued})
	third.Cancel()
	s.trigger()
	require.Equal(t, NotRun, third.Fate)
	s.credit(l, 1)
	all = s.drain(l)
	require.Equal(t, []string{"UNEXPECTED"}, kinds(all))
	require.Equal(t, "y", string(all[0].payload), "the envelope beyond is free again, no other")
	s.credit(l, 1)
	require.Empty(t, s.drain(l))
	s.credit(l, 1)
	all = s.drain(l)
	require.Equal(t, []string{"UNEXPECTED"}, kinds(all))
	require.Equal(t, "c", string(all[0].payload))

	for i := range 9 {
		require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Unexpected, Op: uint64(i + 1)}, []byte("x")))
	}
	require.Empty(t, s.drain(l))
	require.Equal(t, []int{8, 9}, []int{s.nctx.Peers()[0].Offered, s.nctx.Peers()[0].Held})
	r := s.op(func(op *Op) error { return s.nctx.RecvUnexpected(op) })
	s.trigger()
	r.Envelope.Accept()
	all = s.drain(l)
	require.Equal(t, []string{"CREDIT"}, kinds(all))
	require.EqualValues(t, 9, all[0].Credit)
	r.Envelope.Free()
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Unexpected, Op: 10}, []byte("x")))
	require.ErrorContains(t, s.deliver(l, frame.Header{Kind: frame.Unexpected, Op: 11}, []byte("x")), "exceeds the guaranteed 9 envelopes and 1 expedited ones")
}
