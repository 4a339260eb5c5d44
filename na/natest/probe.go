package natest

import (
	"errors"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
)

var probeRules = []rule{
	{name: "Probe", check: probe,
		why: "a probe connects, and reports whether the peer's program is ready: not while it reports itself as not ready, nor while it drains"},
	{name: "ProbeNotDriven", check: probeNotDriven,
		why: "a process that is not driven answers no probe, although its bytes are received: its handlers would not run either"},
	{name: "ProbeBesideRequests", engine: true, check: probeBesideRequests,
		why: "a probe needs no envelope: a peer whose envelopes are all in use is busy, not dead"},
	{name: "ProbeEnds", check: probeEnds,
		why: "a probe ends once, with its outcome: canceled, timed out, no listener, the session lost, the context closed"},
	{name: "Held", check: heldBack,
		why: "a peer whose requests wait is notified of the limit, and of the end of the wait: its errors name the limit"},
	{name: "ProbeSelf", check: probeSelf,
		why: "a context that probes itself or its neighbour is answered likewise"},
}

// probe starts a probe of the peer at to.
func (s *side) probe(to na.Addr, timeout time.Duration) *call {
	s.b.Helper()
	return s.call("probe").start(func(op *na.Op) error { return s.Probe(op, to, timeout) })
}

func probe(b *bed) {
	a, t := b.pair(na.Config{})
	a.probe(t.Self(), 0).requireOK()
	t.cls.SetReady(false)
	a.probe(t.Self(), 0).requireFails(na.ErrNotReady)
	t.cls.SetReady(true)
	var many []*call
	for range 40 {
		many = append(many, a.probe(t.Self(), time.Hour))
	}
	for _, c := range many {
		require.Equal(b, na.NotRun, c.requireOK().Fate)
		require.Equal(b, t.Self(), c.last.Addr.Named())
	}
	t.cls.Drain()
	a.probe(t.Self(), 0).requireFails(na.ErrDraining)
}

func probeNotDriven(b *bed) {
	a, t := b.pair(na.Config{})
	a.probe(t.Self(), 0).requireOK()
	c := a.probe(t.Self(), 0)
	t.parked = true
	timed := a.probe(t.Self(), 20*time.Millisecond)
	r := timed.requireFails(na.ErrTimeout)
	require.ErrorContains(b, r.Err, "no response to the probe")
	b.until("the probes are received", func() bool {
		_ = t.Progress(0) // receives bytes and runs no callbacks
		return t.Upper().Queued() > 0
	})
	b.passTime(5 * time.Millisecond)
	require.False(b, c.ended(), "the callbacks of the peer do not run")
	t.trigger()
	c.requireOK()
	t.parked = false
}

func probeBesideRequests(b *bed) {
	b.rounds([]int{1, 32}, func(g int) {
		t := b.listen(na.Config{Envelopes: g})
		a := b.origin(na.Config{})
		cs := a.sendMany(t.Self(), g+5)
		b.until("every envelope is used", func() bool { return count(cs) == g && t.Stats().Envelopes == g })
		for range 3 {
			a.probe(t.Self(), time.Second).requireOK()
		}
		require.Equal(b, g, count(cs))
		require.Equal(b, g, t.Stats().Envelopes, "envelopes in use")
		for range g + 5 {
			t.next()
		}
	})
}

func probeEnds(b *bed) {
	a, t := b.pair(na.Config{})
	if b.net.Nobody != "" {
		to, err := na.ParseAddr(b.net.Nobody)
		require.NoError(b, err)
		a.probe(to, 0).requireFails(na.ErrUnreachable)
	}
	c := a.probe(t.Self(), 0)
	c.op.Cancel() // it has not been sent
	c.requireFails(na.ErrCanceled)
	a.probe(t.Self(), 0).requireOK()
	t.parked = true
	c = a.probe(t.Self(), 0)
	b.passTime(2 * time.Millisecond)
	c.op.Cancel()
	c.requireFails(na.ErrCanceled)
	t.trigger() // the answer is late
	a.probe(t.Self(), time.Millisecond).requireFails(na.ErrTimeout)
	lost := a.probe(t.Self(), 0)
	b.passTime(2 * time.Millisecond)
	t.parked = false
	a.Disconnect(t.Self(), errors.New("of the test"))
	lost.requireFails(na.ErrPeerLost)
	b.until("the peer is reached again", func() bool { return a.probe(t.Self(), 0).wait().Err == nil })
	t.parked = true
	last := a.probe(t.Self(), 0)
	a.Close()
	last.requireFails(na.ErrClosed)
	t.parked = false
}

func probeSelf(b *bed) {
	s := b.listen(na.Config{Contexts: 2})
	other := b.context(s.cls)
	s.probe(s.Self(), time.Second).requireOK()
	s.probe(other.Self(), time.Second).requireOK()
	other.probe(s.Self(), time.Second).requireOK()
	other.parked = true
	s.probe(other.Self(), 5*time.Millisecond).requireFails(na.ErrTimeout)
	other.parked = false
	s.cls.SetReady(false)
	s.probe(s.Self(), time.Second).requireFails(na.ErrNotReady)
}

func heldBack(b *bed) {
	a, t := b.pair(na.Config{})
	a.send(t.Self(), 1, nil).requireOK()
	heldBy := func(what string) bool {
		p := a.Peers()
		return len(p) == 1 && p[0].HeldBy == what
	}
	b.until("the peer says that nobody has taken the message", func() bool { return heldBy("its event loop does not run, or its program is busy") })
	in := t.recv()
	in.requireOK()
	env := in.keepEnvelope()
	b.until("it says that its program has", func() bool { return heldBy("its program has not accepted them") })
	require.True(b, env.Accept())
	b.until("it says that this is over", func() bool { return heldBy("") })
	env.Free()
}
