package na

import (
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
)

// meetWithdrawing is meet with a peer that gives messages back.
func (s *script) meetWithdrawing(envelopes uint32) *session {
	s.Helper()
	r := s.expect(1<<40, nil)
	l := s.dialed[len(s.dialed)-1]
	s.drain(l)
	g := peerGreeting(envelopes)
	g.Features = frame.FeatureWithdraw
	require.NoError(s, s.hello(l, g))
	r.Cancel()
	s.trigger()
	return l
}

// sentMessages sends n messages and returns their results.
func (s *script) sentMessages(l *session, n int) (rs []*result) {
	s.Helper()
	for range n {
		rs = append(rs, s.send("x"))
	}
	s.drain(l)
	s.trigger()
	for i, r := range rs {
		require.NoError(s, r.Err)
		require.EqualValues(s, i+1, r.ID)
		require.Equal(s, l.addr(), r.Addr)
	}
	return rs
}

func (s *script) withdraw(m *result) *result {
	s.Helper()
	return s.op(func(op *Op) error { return s.nctx.Withdraw(op, m.Addr, m.ID) })
}

// TestWithdrawSent checks the source: it sends one withdrawal for each message, as many without an
// answer as the peer guarantees envelopes, and every answer finds its operation or nothing.
func TestWithdrawSent(t *testing.T) {
	s := newScript(t, Config{})
	l := s.meetWithdrawing(4)
	ms := s.sentMessages(l, 4)
	rs := []*result{s.withdraw(ms[2]), s.withdraw(ms[0])}
	all := s.drain(l)
	require.Equal(t, []string{"WITHDRAW", "WITHDRAW"}, kinds(all))
	require.EqualValues(t, 3, all[0].Op)
	require.EqualValues(t, 1, all[1].Op)
	again := s.withdraw(ms[0])
	s.trigger()
	require.ErrorIs(t, again.Err, ErrBusy, "it is being withdrawn")
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Withdrawn, Op: 1}, nil))
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Withdrawn, Op: 3, Tag: uint64(ErrTooLate)}, nil))
	s.trigger()
	require.NoError(t, rs[1].Err)
	require.ErrorIs(t, rs[0].Err, ErrTooLate)
	require.Equal(t, Ran, rs[0].Fate)

	late := s.withdraw(ms[1]) // canceled here: its answer is dropped and counted
	s.drain(l)
	late.Cancel()
	s.trigger()
	require.ErrorIs(t, late.Err, ErrCanceled)
	require.Empty(t, s.drain(l), "the cancel of a withdraw sends nothing to the peer")
	before := s.nctx.Stats().LateDropped
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Withdrawn, Op: 2}, nil))
	require.Equal(t, before+1, s.nctx.Stats().LateDropped)

	none := s.op(func(op *Op) error { return s.nctx.Withdraw(op, l.addr(), 99) })
	s.trigger()
	require.ErrorIs(t, none.Err, ErrInvalid)
	require.ErrorContains(t, none.Err, "no such message: 99, sent 4")
	require.Error(t, s.deliver(l, frame.Header{Kind: frame.Withdrawn, Op: 4}, nil), "an answer without a question")
}

// TestWithdrawsAreBounded checks that at most as many withdrawals are open as the peer guarantees
// envelopes (C20); the others follow, or end with the session.
func TestWithdrawsAreBounded(t *testing.T) {
	s := newScript(t, Config{})
	l := s.meetWithdrawing(2)
	ms := s.sentMessages(l, 2)
	for range 3 { // the peer accepts, and the source sends more
		require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Credit, Credit: l.credits + 1}, nil))
		m := s.send("y")
		s.drain(l)
		s.trigger()
		ms = append(ms, m)
	}
	var rs []*result
	for _, m := range ms {
		rs = append(rs, s.withdraw(m))
	}
	require.Len(t, s.drain(l), 2)
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Withdrawn, Op: ms[0].ID, Tag: uint64(ErrTooLate)}, nil))
	require.Len(t, s.drain(l), 1)
	rs[4].Cancel() // waits: no withdrawal was sent
	s.trigger()
	require.ErrorIs(t, rs[4].Err, ErrCanceled)
	s.e.Lock()
	l.Fail(ErrPeerLost)
	s.e.Unlock()
	s.trigger()
	for i, r := range rs {
		require.Equal(t, 1, r.ended, "%d", i)
	}
	require.ErrorIs(t, rs[1].Err, ErrPeerLost)
	require.ErrorIs(t, rs[3].Err, ErrPeerLost)
	gone := s.withdraw(ms[1])
	s.trigger()
	require.ErrorIs(t, gone.Err, ErrPeerLost, "the session of the message has ended")
}

// TestWithdrawUnsupported checks that no withdrawal is sent to a peer that has not announced
// support (C-T8).
func TestWithdrawUnsupported(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(4)
	ms := s.sentMessages(l, 1)
	r := s.withdraw(ms[0])
	s.trigger()
	require.ErrorIs(t, r.Err, ErrUnsupported)
	s.nctx.Upper().Abandon(l.addr(), ms[0].ID)
	require.Empty(t, s.drain(l))
}

// TestWithdrawDestroys checks the destination: a message that waits is destroyed and its envelope
// is free; one that was accepted, destroyed before or finished long ago is not; and one that has
// never arrived is a protocol violation (C-T9, C-T25).
func TestWithdrawDestroys(t *testing.T) {
	s := newScript(t, Config{Envelopes: 4})
	l := s.connect(4)
	for range 4 {
		require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Unexpected}, []byte("m")))
	}
	ask := func(id uint64) Code {
		require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Withdraw, Op: id}, nil))
		all := s.drain(l)
		require.Equal(t, frame.Withdrawn, all[0].Kind)
		require.Equal(t, id, all[0].Op)
		return Code(all[0].Tag)
	}
	held := s.op(func(op *Op) error { return s.nctx.RecvUnexpected(op) })
	accepted := s.op(func(op *Op) error { return s.nctx.RecvUnexpected(op) })
	s.trigger()
	require.EqualValues(t, 1, held.Envelope.id)
	require.True(t, accepted.Envelope.Accept())

	require.Equal(t, OK, ask(1), "received, and not accepted")
	require.False(t, held.Envelope.Accept())
	require.Equal(t, ErrTooLate, ask(1), "once is enough")
	require.Equal(t, ErrTooLate, ask(2), "accepted")
	require.Equal(t, OK, ask(3), "not even received")
	require.EqualValues(t, 2, s.nctx.Stats().Withdrawn)
	require.Equal(t, 1, s.nctx.Stats().Envelopes)
	next := s.op(func(op *Op) error { return s.nctx.RecvUnexpected(op) })
	s.trigger()
	require.EqualValues(t, 4, next.Envelope.id, "what was destroyed is not received")
	for _, env := range []*Envelope{held.Envelope, accepted.Envelope, next.Envelope} {
		env.Free()
	}
	require.Zero(t, s.nctx.Stats().Envelopes)
	require.EqualValues(t, 4, l.released, "each envelope was freed once")
	require.Error(t, s.deliver(l, frame.Header{Kind: frame.Withdraw, Op: 5}, nil), "the fifth never arrived")
	require.False(t, l.Up())
}

// TestWithdrawRacesAccept races a goroutine that accepts messages with one that processes their
// withdrawals (C-T11, C-T12): one of them wins, and the envelope is free once.
func TestWithdrawRacesAccept(t *testing.T) {
	n := long.Or(10_000, 100_000)
	s := newScript(t, Config{Envelopes: 4})
	l := s.connect(4)
	var env *Envelope
	var accepted bool
	start, done := make(chan struct{}), make(chan struct{})
	go func() {
		for range start {
			accepted = env.Accept()
			done <- struct{}{}
		}
	}()
	wins := 0
	for i := range uint64(n) {
		require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Unexpected}, nil))
		r := s.op(func(op *Op) error { return s.nctx.RecvUnexpected(op) })
		s.trigger()
		env = r.Envelope
		start <- struct{}{}
		if i%4 == 0 {
			runtime.Gosched()
		}
		require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Withdraw, Op: i + 1}, nil))
		<-done
		env.Free()
		all := s.drain(l)
		if code := Code(all[0].Tag); all[0].Kind != frame.Withdrawn || (code == OK) == accepted {
			t.Fatalf("message %d: %v reports %v, accepted %v", i+1, all[0].Kind, code, accepted)
		}
		if accepted {
			wins++
		}
		if got := l.released; got != uint32(i+1) || l.held != 0 {
			t.Fatalf("message %d: %d envelopes released, %d held", i+1, got, l.held)
		}
	}
	close(start)
	t.Logf("of %d messages %d were accepted", n, wins)
	require.EqualValues(t, n-wins, s.nctx.Stats().Withdrawn)
	require.Zero(t, s.nctx.Stats().Envelopes)
	require.Positive(t, wins)
	require.Less(t, wins, n)
}

// TestWithdrawFlood checks that a peer that sends withdrawals without reading the answers is cut
// (C-T19); others are not.
func TestWithdrawFlood(t *testing.T) {
	s := newScript(t, Config{Envelopes: 4})
	l := s.connect(4)
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Unexpected}, []byte("m")))
	for range 4 {
		require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Withdraw, Op: 1}, nil))
	}
	require.ErrorContains(t, s.deliver(l, frame.Header{Kind: frame.Withdraw, Op: 1}, nil), "with unread responses")
	require.False(t, l.Up())
	require.EqualValues(t, 1, s.nctx.Stats().Violations)
}

// TestWithdrawnDoNotPileUp checks that withdrawn messages do not accumulate while no receive is
// posted: they have no envelope any more.
func TestWithdrawnDoNotPileUp(t *testing.T) {
	s := newScript(t, Config{Envelopes: 4})
	l := s.connect(4)
	kept := frame.Header{Kind: frame.Unexpected, Tag: 7}
	require.NoError(t, s.deliver(l, kept, []byte("kept")))
	for id := uint64(2); id < 5000; id++ {
		require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Unexpected, Op: id}, make([]byte, 4000)))
		require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Abandon, Op: id}, nil))
		s.drain(l)
		require.Equal(t, 1, s.e.inbox.n, "after message %d", id)
	}
	require.LessOrEqual(t, len(s.e.freeEnvs), 4)
	r := s.op(func(op *Op) error { return s.nctx.RecvUnexpected(op) })
	s.trigger()
	require.NoError(t, r.Err)
	require.Equal(t, "kept", string(r.Envelope.Data))
	require.EqualValues(t, 7, r.Tag)
	r.Envelope.Free()
	require.Zero(t, s.e.inbox.n)
	require.Zero(t, s.nctx.Stats().Envelopes)
}

// TestWaiters checks that messages are found by their number, also when those before them stay for
// long.
func TestWaiters(t *testing.T) {
	var w messageTable
	const most = 5 // 8 places
	envs := map[uint64]*Envelope{}
	for id := uint64(1); id < 1000; id++ {
		env := &Envelope{id: id}
		w.add(env, most)
		envs[id] = env
		if id > 4 && id != 9 && id != 17 { // 1 to 4, 9 and 17 stay; 1, 9 and 17 want the same place
			w.remove(env)
			delete(envs, id)
		}
		for _, probe := range []uint64{1, 2, 3, 4, 9, 17, id, id + 1} {
			require.Same(t, envs[probe], w.find(probe), "message %d after %d", probe, id)
		}
	}
	require.Len(t, w.slots, 8)
	for _, env := range envs {
		w.remove(env)
	}
	require.Empty(t, w.rest)
	for _, env := range w.slots {
		require.Nil(t, env)
	}
	require.Zero(t, w.n)
	for id := uint64(1); id <= 100; id++ { // more than there is room for at first: those that are accepted are not bounded by it
		envs[id] = &Envelope{id: id, accepted: id < 50}
		w.add(envs[id], most)
	}
	require.Len(t, w.slots, 128)
	require.Empty(t, w.rest)
	require.Same(t, envs[50], w.oldestUnaccepted())
	for id, env := range envs {
		require.Same(t, env, w.find(id))
	}
}

// TestRecords checks that a layer above gets the messages in records of its own: each is given to
// it, and taken back by its own decision, or put back by the endpoint if the layer was not given
// it.
func TestRecords(t *testing.T) {
	s := newScript(t, Config{Envelopes: 8})
	got, put := 0, 0
	var abandoned, given []*Envelope
	s.nctx.Upper().Records(func() *Envelope {
		got++
		return &Envelope{Record: got}
	}, func(e *Envelope) {
		require.Nil(t, e.Data)
		put++
	})
	s.nctx.Upper().OnMessage(func(e *Envelope) int {
		given = append(given, e)
		return 1
	}, func() {})
	s.nctx.Upper().OnAbandon(func(e *Envelope) { abandoned = append(abandoned, e) })
	l := s.connect(8)
	for tag := range uint64(3) {
		require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Unexpected, Tag: 40 + tag}, []byte("message")))
	}
	s.e.Lock()
	h := frame.Header{Kind: frame.Unexpected, Tag: 43, Credit: l.credits}
	h.SetPayload(6)
	v, err := l.Place(&h)
	require.NoError(t, err)
	copy(v.Slice(0, 6), "placed")
	require.NoError(t, l.Placed(v))
	s.e.Unlock()
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Abandon, Op: 2}, nil))
	require.Equal(t, 1, put, "the one that was not delivered")
	s.trigger()
	require.Len(t, given, 3)
	for i, want := range []struct {
		record int
		tag    Tag
		data   string
	}{{1, 40, "message"}, {3, 42, "message"}, {4, 43, "placed"}} {
		require.Equal(t, want.record, given[i].Record)
		require.Equal(t, want.tag, given[i].Tag)
		require.Equal(t, want.data, string(given[i].Data))
		require.True(t, given[i].Accept())
	}
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Abandon, Op: 3}, nil))
	require.Equal(t, []*Envelope{given[1]}, abandoned)
	for _, e := range given {
		e.Free()
		require.Nil(t, e.Data)
		require.NotNil(t, e.Record)
	}
	require.Equal(t, 1, put, "those are the layer's")
	require.Empty(t, l.requests.n)
	require.LessOrEqual(t, len(s.e.freeEnvs), 1, "that of the message which was placed")
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Unexpected, Tag: 44}, []byte("left")))
	s.nctx.Close()
	require.Equal(t, 2, put)
	s.trigger()
}

// TestAbandonSentOnce checks that the source sends one ABANDON for a message that has left, also for
// very many to a peer that does not read for a while, which is not cut for it. A queued frame that
// is not an ABANDON of one more call is dropped in the end.
func TestAbandonSentOnce(t *testing.T) {
	s := newScript(t, Config{})
	l := s.meetWithdrawing(4)
	m := s.sentMessages(l, 1)[0]
	s.nctx.Upper().Abandon(l.addr(), m.ID)
	all := s.drain(l)
	require.Equal(t, []string{"ABANDON"}, kinds(all))
	require.Equal(t, m.ID, all[0].Op)
	require.Zero(t, all[0].Tag)
	s.nctx.Upper().Abandon(l.addr(), m.ID+1)
	require.Empty(t, s.drain(l), "the message has not left")
	for range 2 * maxControl {
		s.nctx.Upper().Abandon(l.addr(), m.ID)
	}
	require.True(t, s.nctx.Connected(l.addr()))
	require.Len(t, s.drain(l), 2*maxControl)
	most := maxRecvs + s.e.dom.cfg.SendQueue
	for range most + 10 {
		s.nctx.Upper().Abandon(l.addr(), m.ID)
	}
	require.Len(t, s.drain(l), most)
	require.True(t, s.nctx.Connected(l.addr()))
}

// TestAbandonReceived checks that at the destination a message that waits is destroyed without a
// notification, and its envelope is free; the receiver of an accepted one is notified; and one that
// has never arrived is a protocol violation.
func TestAbandonReceived(t *testing.T) {
	s := newScript(t, Config{Envelopes: 4})
	l := s.meetWithdrawing(4)
	var heard []Tag
	s.nctx.Upper().OnAbandon(func(e *Envelope) {
		require.Equal(t, l.addr(), e.From)
		heard = append(heard, e.Tag)
	})
	for tag := range uint64(3) {
		require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Unexpected, Tag: 40 + tag}, []byte("m")))
	}
	s.drain(l)
	first := s.op(s.nctx.RecvUnexpected)
	s.trigger()
	require.True(t, first.Envelope.Accept())
	for id := range uint64(2) {
		require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Abandon, Op: 1 + id}, nil))
	}
	require.Equal(t, []Tag{40}, heard, "at once")
	require.Equal(t, 1, s.nctx.Stats().Envelopes)
	require.EqualValues(t, 2, l.released)
	last := s.op(s.nctx.RecvUnexpected)
	s.trigger()
	require.EqualValues(t, 42, last.Tag, "the one between is gone")
	require.False(t, last.Envelope.IsWithdrawn())
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Abandon, Op: 3}, nil))
	require.True(t, last.Envelope.IsWithdrawn())
	require.False(t, last.Envelope.Accept())
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Abandon, Op: 3}, nil))
	first.Envelope.Free()
	last.Envelope.Free()
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Abandon, Op: 1}, nil))
	require.Equal(t, []Tag{40}, heard, "one that was withdrawn, or is answered, is not there any more")
	require.Zero(t, l.requests.n)
	require.ErrorContains(t, s.deliver(l, frame.Header{Kind: frame.Abandon, Op: 4}, nil), "ABANDON frame for message 4, received 3")
}

func TestTimers(t *testing.T) {
	s := newScript(t, Config{})
	start := func(d time.Duration) *result {
		return s.op(func(op *Op) error { return s.nctx.Timer(op, d) })
	}
	var rs []*result
	for _, d := range []time.Duration{30, 10, 20, 10, 50, 40} {
		rs = append(rs, start(d*time.Millisecond))
	}
	next := func() time.Duration {
		at := s.e.Next()
		ok := at != 0
		require.True(t, ok)
		return at - s.clock
	}
	require.Equal(t, 10*time.Millisecond, next())
	ended := func() (n int) {
		s.trigger()
		for _, r := range rs {
			n += r.ended
		}
		return n
	}
	s.advance(9 * time.Millisecond)
	require.Zero(t, ended())
	s.advance(time.Millisecond)
	require.Equal(t, 2, ended())
	require.Equal(t, 10*time.Millisecond, next())
	rs[2].Cancel()
	require.Equal(t, 3, ended())
	require.ErrorIs(t, rs[2].Err, ErrCanceled)
	require.Equal(t, 20*time.Millisecond, next(), "the canceled one is not waited for")
	s.advance(time.Second)
	require.Equal(t, 6, ended())
	require.NoError(t, rs[4].Err)
	ok := s.e.Next() != 0
	require.False(t, ok)
	past := start(-time.Second)
	s.advance(0)
	s.trigger()
	require.Equal(t, 1, past.ended)
	never := start(math.MaxInt64)
	s.advance(time.Hour)
	s.trigger()
	require.Zero(t, never.ended)
	left := start(time.Hour)
	s.nctx.Close()
	s.trigger()
	require.ErrorIs(t, left.Err, ErrClosed)
}

// BenchmarkWithdraw destroys a message among 4,096 that are held, the first or the last that was sent: the time is the same
// (C22, C-T23).
func BenchmarkWithdraw(b *testing.B) {
	const held = 4096
	for _, last := range []bool{false, true} {
		b.Run(map[bool]string{false: "first", true: "last"}[last], func(b *testing.B) {
			l := &session{e: &endpoint{}, guaranteed: held}
			for i := range uint64(held) {
				l.received++
				l.requests.add(&Envelope{id: i + 1}, held)
			}
			id := uint64(1)
			if last {
				id = held
			}
			for b.Loop() {
				env := l.requests.find(id)
				l.requests.remove(env)
				l.requests.add(env, held)
			}
		})
	}
}
