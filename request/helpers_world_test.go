package request_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/loop"
	"github.com/quicksilver-rpc/quicksilver/request"
	"github.com/stretchr/testify/assert"
)

var seedFlag = flag.Uint64("request.seed", 0, "replay the random tests with this seed (0: a new one each time)")

func newRand(t *testing.T) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("replay with -request.seed=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

const ms = time.Millisecond

// A testWorld is a Progressor without a network: callbacks become ready at set times of the bubble's clock. So time
// passes only when all goroutines of the test are blocked, and a wait that nothing will end fails the test at once.
type testWorld struct {
	start time.Time
	wake  chan struct{} // makes Progress return
	kick  chan struct{} // makes Progress look again

	mu     sync.Mutex
	events []event // by time
	queue  []func()
	closed error

	inside, maxInside int             // goroutines in Progress
	timeouts          []time.Duration // what Progress was called with
	looks             atomic.Int64    // calls of Now
}

type event struct {
	at time.Duration
	cb func()
}

// waiter makes a Waiter of a Progressor whose world can be woken.
type waiter struct {
	request.Progressor
	w    *testWorld
	loop *loop.Loop
}

func waiterOf(w *testWorld, p request.Progressor) *waiter {
	a := &waiter{Progressor: p, w: w}
	a.loop = loop.New((*driver)(a), loop.HandOn)
	return a
}

func (a *waiter) WaitFor(ctx context.Context, timeout time.Duration, done func() bool) error {
	return a.loop.Wait(ctx, timeout, done)
}

func (a *waiter) Wake() { a.loop.Wake() }

// driver is how it is driven.
type driver waiter

func (d *driver) Poll(w *loop.Waiter, _, until time.Duration) (read time.Duration, err error) {
	w.WillSleep()
	if w.Stirred() {
		return -1, nil
	}
	timeout := time.Duration(-1)
	if until != loop.Never {
		timeout = max(until-d.Now(), 0)
	}
	return -1, d.Progressor.Progress(timeout)
}

func (d *driver) Run(w *loop.Waiter, max int) (ran int) {
	for ran < max && d.Progressor.Trigger(1) > 0 {
		if ran++; w.Stops() {
			break
		}
	}
	return ran
}

func (d *driver) Queued() int { return 0 }
func (d *driver) Stir()       { signal(d.w.wake) }
func (d *driver) Hold() bool  { return false }
func (d *driver) Unhold()     {}
func (d *driver) Freed()      {}
func (d *driver) Flush()      {}

func signal(slot chan struct{}) {
	select {
	case slot <- struct{}{}:
	default:
	}
}

// eachProgressor runs f in a bubble of its own with a Progressor that is a Waiter and with one that is not.
func eachProgressor(t *testing.T, f func(t *testing.T, w *testWorld, c *request.Class)) {
	t.Run("waiter", func(t *testing.T) { withWaiter(t, f) })
	t.Run("no waiter", func(t *testing.T) { withoutWaiter(t, f) })
}

func withWaiter(t *testing.T, f func(t *testing.T, w *testWorld, c *request.Class)) {
	inBubble(t, func(w *testWorld) request.Progressor { return waiterOf(w, w) }, f)
}

func withoutWaiter(t *testing.T, f func(t *testing.T, w *testWorld, c *request.Class)) {
	inBubble(t, func(w *testWorld) request.Progressor { return w }, f)
}

func inBubble(t *testing.T, as func(*testWorld) request.Progressor, f func(*testing.T, *testWorld, *request.Class)) {
	synctest.Test(t, func(t *testing.T) {
		w := &testWorld{start: time.Now(), wake: make(chan struct{}, 1), kick: make(chan struct{}, 1)}
		p := as(w)
		c := request.NewClass(p)
		f(t, w, c)
		synctest.Wait()
		assert.True(t, request.Quiet(c), "something is left in the class")
		if a, ok := p.(*waiter); ok {
			assert.True(t, a.loop.Quiet(), "something is left in the table")
		}
		assert.LessOrEqual(t, w.maxInside, 1, "goroutines in Progress at once")
	})
}

func (w *testWorld) now() time.Duration { return time.Since(w.start) }

// after makes cb ready for Trigger when d has passed.
func (w *testWorld) after(d time.Duration, cb func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := event{w.now() + d, cb}
	i, _ := slices.BinarySearchFunc(w.events, e, func(a, b event) int {
		if a.at <= b.at {
			return -1
		}
		return 1
	})
	w.events = slices.Insert(w.events, i, e)
	signal(w.kick)
}

// post makes cb ready for Trigger now, without Progress, as a local cancel does.
func (w *testWorld) post(cb func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = append(w.queue, cb)
	signal(w.kick)
}

func (w *testWorld) close(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = err
	signal(w.kick)
}

func (w *testWorld) Now() time.Duration {
	w.looks.Add(1)
	return w.now()
}

func (w *testWorld) Trigger(max int) (ran int) {
	for ; max <= 0 || ran < max; ran++ {
		w.mu.Lock()
		if len(w.queue) == 0 {
			w.mu.Unlock()
			break
		}
		cb := w.queue[0]
		w.queue = w.queue[1:]
		w.mu.Unlock()
		cb()
	}
	return ran
}

func (w *testWorld) Progress(timeout time.Duration) error {
	w.mu.Lock()
	w.inside++
	w.maxInside = max(w.maxInside, w.inside)
	w.timeouts = append(w.timeouts, timeout)
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.inside--
		w.mu.Unlock()
	}()
	deadline := w.now() + timeout
	for {
		ready, next, err := w.collectDue()
		now := w.now()
		switch {
		case ready:
			return nil
		case err != nil:
			return err
		case timeout >= 0 && now >= deadline:
			return fmt.Errorf("fake: nothing happened: %w", os.ErrDeadlineExceeded)
		}
		if timeout >= 0 && (next < 0 || deadline < next) {
			next = deadline
		}
		var alarm <-chan time.Time
		if next >= 0 {
			alarm = time.After(next - now)
		}
		select {
		case <-w.wake:
			return nil
		case <-w.kick:
		case <-alarm:
		}
	}
}

// collectDue queues the callbacks that are due and returns when the next one is, or -1.
func (w *testWorld) collectDue() (ready bool, next time.Duration, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.events) > 0 && w.events[0].at <= w.now() {
		w.queue = append(w.queue, w.events[0].cb)
		w.events = w.events[1:]
	}
	next = -1
	if len(w.events) > 0 {
		next = w.events[0].at
	}
	return len(w.queue) > 0, next, w.closed
}

// calls returns what Progress was called with since the last calls.
func (w *testWorld) calls() []time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.timeouts
	w.timeouts = nil
	return out
}

// pause lets a callback block, or time pass for d.
func pause(d time.Duration) {
	timer := time.NewTimer(d)
	<-timer.C
}
