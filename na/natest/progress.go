package natest

import (
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
)

var progressRules = []rule{
	{name: "ProgressIdle", check: progressIdle,
		why: "Progress of an idle context returns a timeout when its time is over, not before; loops are built on that"},
	{name: "Wake", check: wake,
		why: "Wake makes the next Progress return at once: how other work of the program gets its turn"},
	{name: "WakeSleeper", check: wakeSleeper, needs: concurrent,
		why: "Wake from another goroutine ends a Progress that sleeps"},
	{name: "TriggerSome", engine: true, check: triggerSome,
		why: "Trigger runs the requested number of callbacks, in the order in which the operations ended, and returns how many"},
	{name: "Together", check: together,
		why: "what is started inside Together leaves when it returns, in order; a panic or a Close inside holds nothing back"},
	{name: "OneSided", check: oneSided, needs: assisted,
		why: "puts and gets are served although the owner of the memory drives nothing: it may be computing"},
	{name: "ManyFollow", check: manyFollow, needs: concurrent,
		why: "several goroutines may wait in Progress of one context: none sleeps through a completion or through Close"},
	{name: "Storm", check: storm, needs: concurrent,
		why: "any goroutine may start, cancel, drive and trigger: each operation ends once and nothing is lost"},
	{name: "StormClose", check: stormClose, needs: concurrent,
		why: "Close in the middle of everything: each operation ends once and everything is given back"},
}

func timeoutOf(ns float64) time.Duration { return time.Duration(ns) }

func progressIdle(b *bed) {
	s := b.listen(na.Config{})
	b.passTime(5 * time.Millisecond) // until nothing is in flight
	for _, d := range []time.Duration{0, time.Millisecond, 30 * time.Millisecond} {
		begin, wall := s.Now(), time.Now()
		err := s.Progress(d)
		require.ErrorIs(b, err, na.ErrTimeout)
		require.ErrorIs(b, err, os.ErrDeadlineExceeded)
		require.GreaterOrEqual(b, s.Now()-begin, d, "time that Progress(%v) took", d)
		require.Less(b, s.Now()-begin, d+5*time.Second, "time that Progress(%v) took", d)
		require.Less(b, time.Since(wall), 5*time.Second+d)
		require.Zero(b, s.Trigger(0))
	}
}

func wake(b *bed) {
	s := b.listen(na.Config{})
	b.passTime(5 * time.Millisecond)
	begin := s.Now()
	s.Wake()
	require.NoError(b, s.Progress(time.Hour))
	s.Wake()
	s.Wake()
	require.NoError(b, s.Progress(-1))
	require.Less(b, s.Now()-begin, 10*time.Second)
	require.ErrorIs(b, s.Progress(0), na.ErrTimeout, "a wake-up counts once")
}

func wakeSleeper(b *bed) {
	s := b.listen(na.Config{})
	for range 50 {
		done := make(chan error)
		go func() { done <- s.Progress(time.Hour) }()
		s.Wake()
		require.NoError(b, receive(b, done))
	}
}

// receive returns a value from ch. If none arrives within 30 seconds of wall-clock time, it fails
// the rule.
func receive[T any](b *bed, ch <-chan T) (v T) {
	b.Helper()
	select {
	case v = <-ch:
	case <-time.After(30 * time.Second):
		b.Fatalf("nothing after 30 s\n%s", b.dump())
	}
	return v
}

func triggerSome(b *bed) {
	a, t := b.pair(na.Config{})
	b.connect(a, t)
	const n = 10
	var cs []*call
	var order []int
	for i := range n {
		c := a.recvExpected(t.Self(), na.Tag(10+i), 8)
		c.then = func(na.Result) { order = append(order, i) }
		cs = append(cs, c)
	}
	for i := range n {
		cs[(i*7)%n].op.Cancel()
	}
	require.Equal(b, n, a.Upper().Queued())
	require.Empty(b, order, "callbacks that ran outside of Trigger")
	require.NoError(b, a.Progress(time.Hour), "Progress while callbacks wait")
	b.triggering.Add(1)
	defer b.triggering.Add(-1)
	require.Equal(b, 1, a.Trigger(1))
	require.Equal(b, []int{0}, order)
	require.Equal(b, 3, a.Trigger(3))
	require.Equal(b, n-4, a.Trigger(100))
	require.Zero(b, a.Trigger(0))
	for i, got := range order {
		require.Equal(b, (i*7)%n, got, "callback %d", i)
	}
	// An operation started by a callback waits for the next Trigger, even if it completes
	// immediately.
	first := a.recv()
	first.then = func(na.Result) { first.start(func(op *na.Op) error { return a.RecvUnexpected(op) }); first.op.Cancel() }
	first.op.Cancel()
	require.Equal(b, 1, a.Trigger(0))
	require.Equal(b, 1, a.Upper().Queued())
	first.then = nil
	require.Equal(b, 1, a.Trigger(0))
}

func together(b *bed) {
	a, t := b.pair(na.Config{})
	b.connect(a, t)
	theirs := t.mine(100)
	var get, canceled *call
	a.Batch(func() {
		for i := range 10 {
			a.send(t.Self(), na.Tag(i), pattern(i, 100))
		}
		a.Batch(func() { a.send(t.Self(), 10, pattern(10, 100)) })
		get = a.get(a.private(make([]byte, 100)), 0, t.Self(), theirs.out, 0, 100)
		canceled = a.recvExpected(t.Self(), 7, 100)
		require.ErrorIs(b, canceled.cancelNow().Err, na.ErrCanceled)
	})
	for i := range 11 {
		require.Equal(b, na.Tag(i), t.next().tag)
	}
	get.requireOK()
	require.Panics(b, func() {
		a.Batch(func() {
			a.send(t.Self(), 11, nil)
			panic("in the middle")
		})
	})
	require.Equal(b, na.Tag(11), t.next().tag)
	last := a.recv()
	a.Batch(a.Close)
	last.requireFails(na.ErrClosed)
	b.until("the peer is notified of Close", func() bool { return t.Stats().Peers == 0 })
}

func oneSided(b *bed) {
	a, t := b.pair(na.Config{})
	b.connect(a, t)
	mem := t.register(na.ReadWrite, pattern(1, moving))
	t.parked = true
	ours := make([]byte, moving)
	a.get(a.private(ours), 0, t.Self(), mem.Key(), 0, moving).requireOK()
	require.Equal(b, pattern(1, moving), ours)
	a.put(a.private(pattern(2, moving)), 0, t.Self(), mem.Key(), 0, moving).requireOK()
	require.Equal(b, pattern(2, moving), mem.Segments()[0])
	c := b.origin(na.Config{}) // a new peer is also admitted
	c.get(c.private(ours), 0, t.Self(), mem.Key(), 0, moving).requireOK()
	c.send(t.Self(), 1, nil).requireOK()
	t.parked = false
	t.next()
}

func manyFollow(b *bed) {
	a, t := b.pair(na.Config{})
	toA, _ := b.connect(a, t)
	var wg sync.WaitGroup
	var ended atomic.Int32
	b.triggering.Add(1)
	const n = 40
	for range 4 {
		wg.Go(func() {
			for !a.Closed() {
				_ = a.Progress(-1)
				a.Trigger(1)
			}
			ended.Add(1)
		})
	}
	a.parked = true
	var cs []*call
	for i := range n {
		cs = append(cs, a.recvExpected(t.Self(), na.Tag(10+i), 8))
	}
	for i := range n {
		t.sendExpected(toA, na.Tag(10+i), nil)
		c := cs[i]
		b.until("a sleeper takes the message", c.ended)
	}
	last := a.recv()
	a.Close()
	b.until("every sleeper returns at Close", func() bool { return ended.Load() == 4 })
	wg.Wait()
	b.triggering.Add(-1)
	last.requireFails(na.ErrClosed)
}

// driveConcurrently starts two goroutines for each of sides, which drive its context. stop ends
// them and waits for them.
func driveConcurrently(b *bed, sides ...*side) (stop func()) {
	var wg sync.WaitGroup
	var over atomic.Bool
	b.triggering.Add(1)
	for _, s := range sides {
		s.parked = true
		for range 2 {
			wg.Go(func() {
				for !over.Load() && !s.Closed() {
					_ = s.Progress(5 * time.Millisecond)
					s.Trigger(4)
				}
			})
		}
	}
	return func() {
		over.Store(true)
		for _, s := range sides {
			s.Wake()
		}
		wg.Wait()
		for _, s := range sides {
			s.parked = false
		}
		b.triggering.Add(-1)
	}
}

// startRandomOps starts random operations of every kind and cancels some of them. It adds the
// number of messages sent successfully to sentOK.
func startRandomOps(b *bed, seed uint64, n int, a, t *side, m moveKeys, sentOK *atomic.Int64, closed *atomic.Bool) {
	r := rand.New(rand.NewPCG(seed, 99))
	var flying []*call
	tag := na.Tag(seed) << 32
	buf := make([]byte, 64<<10)
	local := a.private(buf)
	try := func(c *call, run func(op *na.Op) error) {
		err := c.try(run)
		if err != nil && !(closed.Load() && errors.Is(err, na.ErrClosed)) {
			b.Errorf("%s was refused: %v", c.what, err)
		}
		flying = append(flying, c)
	}
	for range n {
		switch r.IntN(6) {
		case 0, 1:
			c := a.call("send unexpected")
			c.sent = make([]byte, r.IntN(500))
			c.then = func(r na.Result) {
				if r.Err == nil {
					sentOK.Add(1)
				}
			}
			try(c, func(op *na.Op) error { return a.SendUnexpected(op, t.Self(), 1, c.sent) })
		case 2:
			c := a.call("receive expected")
			c.buffer(100)
			tag++
			try(c, func(op *na.Op) error { return a.RecvExpected(op, t.Self(), tag, c.buf) })
			c.op.Cancel() // no message for it is sent
		case 3:
			n := int64(r.IntN(len(buf)))
			try(a.call("get"), func(op *na.Op) error {
				return a.Get(op, a.private(make([]byte, n)), 0, t.Self(), m.out, 0, n)
			})
		case 4:
			n := int64(r.IntN(len(buf)))
			try(a.call("put"), func(op *na.Op) error { return a.Put(op, local, 0, t.Self(), m.in, 0, n) })
		case 5:
			tag++
			try(a.call("lease"), func(op *na.Op) error { _, err := a.Upper().Lease(op, t.Self(), tag, make([]byte, 10)); return err })
			flying[len(flying)-1].op.Cancel()
		}
		if r.IntN(3) == 0 {
			flying[r.IntN(len(flying))].op.Cancel()
		}
		if len(flying) > 40 {
			wall := newStopwatch()
			for !flying[0].ended() && !wall.over() {
				_ = a.Progress(time.Millisecond)
				a.Trigger(1)
			}
			flying = flying[1:]
		}
	}
	for _, c := range flying {
		for wall := newStopwatch(); !c.ended() && !wall.over(); {
			_ = a.Progress(time.Millisecond)
			a.Trigger(1)
		}
	}
}

func storm(b *bed) {
	a, t := b.listen(na.Config{Envelopes: 8}), b.listen(na.Config{Envelopes: 8})
	b.connect(a, t)
	var received [2]atomic.Int64
	for i, s := range []*side{a, t} {
		for range 3 {
			c := s.call("receive unexpected")
			again := func() { _ = c.try(func(op *na.Op) error { return s.RecvUnexpected(op) }) }
			c.then = func(r na.Result) {
				if r.Err == nil {
					received[i].Add(1)
					c.freeEnvelope()
					again()
				}
			}
			again()
		}
	}
	ofA, ofT := a.mine(64<<10), t.mine(64<<10)
	stop := driveConcurrently(b, a, t)
	var sent [2]atomic.Int64
	var wg sync.WaitGroup
	var closed atomic.Bool
	for seed := range uint64(4) {
		wg.Go(func() {
			if seed%2 == 0 {
				startRandomOps(b, seed, 300, a, t, ofT, &sent[1], &closed)
			} else {
				startRandomOps(b, seed, 300, t, a, ofA, &sent[0], &closed)
			}
		})
	}
	wg.Wait()
	stop()
	for i, s := range []string{"first", "second"} {
		b.until("every message has arrived at the "+s, func() bool { return received[i].Load() >= sent[i].Load() })
	}
	b.drain(a, t)
	for i := range sent {
		require.Equal(b, sent[i].Load(), received[i].Load(), "messages received, of those whose send ended with success")
	}
	require.Zero(b, a.Stats().PeersLost+t.Stats().PeersLost, "sessions lost")
	require.Zero(b, a.Stats().Violations+t.Stats().Violations)
}

// stormClose runs only a few operations per goroutine, so that many of them are in flight when the
// class is closed. Later ones would only fail with ErrClosed.
func stormClose(b *bed) {
	for round := range uint64(3) {
		a, t := b.listen(na.Config{Envelopes: 8}), b.listen(na.Config{Envelopes: 8})
		b.connect(a, t)
		ofA, ofT := a.mine(64<<10), t.mine(64<<10)
		stop := driveConcurrently(b, a, t)
		var wg sync.WaitGroup
		var closed atomic.Bool
		var started atomic.Int32
		for seed := range uint64(4) {
			wg.Go(func() {
				started.Add(1)
				if seed%2 == 0 {
					startRandomOps(b, 10*round+seed, 40, a, t, ofT, new(atomic.Int64), &closed)
				} else {
					startRandomOps(b, 10*round+seed, 40, t, a, ofA, new(atomic.Int64), &closed)
				}
			})
		}
		wg.Go(func() {
			end := newStopwatch()
			for a.Stats().Outstanding+a.Upper().Queued() < 10*int(round) && !end.over() && started.Load() < 4 {
				_ = t.Progress(time.Millisecond)
			}
			closed.Store(true)
			a.Close()
		})
		wg.Wait()
		stop()
		b.reopen()
	}
	b.listen(na.Config{})
}
