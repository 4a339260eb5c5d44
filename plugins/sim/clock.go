package sim

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// epoch is the time that represents virtual time zero in the deadline of a context. A deadline
// before horizon is a virtual time, because no real clock shows a time that early.
var (
	epoch   = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	horizon = epoch.AddDate(20, 0, 0)
)

// lastTime is the latest deadline that a context can have in virtual time.
var lastTime = horizon.Sub(epoch) - 1

// Scheduled implements simhook.Scheduler.
func (in *instance) Scheduled() bool { return in.node.w.current != nil }

// Spawn implements simhook.Scheduler.
func (in *instance) Spawn(f func()) {
	if !in.Scheduled() {
		go f()
		return
	}
	in.node.Go(f)
}

// Until implements simhook.Scheduler.
func (in *instance) Until(deadline time.Time) (time.Duration, error) {
	return in.node.w.Until(deadline)
}

// Time implements simhook.Scheduler.
func (in *instance) Time(at time.Duration) time.Time {
	if !in.Scheduled() {
		return time.Now().Add(at - in.node.w.Now())
	}
	return epoch.Add(at)
}

// WithTimeout implements simhook.Scheduler.
func (in *instance) WithTimeout(parent context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if !in.Scheduled() {
		return context.WithTimeout(parent, timeout)
	}
	return in.node.w.WithTimeout(parent, timeout)
}

// Spawn runs f in a new coroutine on the calling coroutine's node. It panics if it is not called
// from a coroutine; use [World.Go] instead.
func (w *World) Spawn(f func()) {
	if w.current == nil {
		panic("sim: Spawn called outside a coroutine of the world; use World.Go")
	}
	w.current.checkGoroutine()
	w.current.node.Go(f)
}

// Until returns the virtual time left until the deadline of a context that was created by
// [World.WithTimeout] or passed to a handler. For any other deadline it returns the real time left,
// except in a coroutine. There it returns an error that matches codes.ErrInvalid, because such a
// deadline depends on the real clock, which cannot be replayed.
func (w *World) Until(deadline time.Time) (time.Duration, error) {
	switch {
	case deadline.Before(horizon):
		return deadline.Sub(epoch) - w.Now(), nil
	case w.current != nil:
		return 0, codes.WithText(codes.ErrInvalid, fmt.Sprintf("the context of coroutine %s has a deadline in real time; create it with "+
			"sim.World.WithTimeout or na.Context.WithTimeout instead of context.WithTimeout", w.current.name))
	}
	return time.Until(deadline), nil
}

// WithTimeout is like context.WithTimeout, but uses virtual time. The context ends with
// context.DeadlineExceeded when d has elapsed, and also when cancel is called or parent ends. Its
// Deadline is expressed relative to 2000-01-01 UTC, which is virtual time zero, so a
// context.WithTimeout derived from it has no effect. Deadlines are capped at 20 years after that
// date.
func (w *World) WithTimeout(parent context.Context, d time.Duration) (ctx context.Context, cancel context.CancelFunc) {
	d = min(d, lastTime-w.Now())
	t := &virtualContext{w: w, parent: parent, at: epoch.Add(w.timeAfter(max(d, 0))), done: make(chan struct{})}
	t.ev = event{actor: t, isTimer: true}
	if before, ok := parent.Deadline(); ok && before.Before(t.at) {
		t.at = before
	}
	w.takeTurn()
	if d > 0 {
		w.events.schedule(&t.ev, w.timeAfter(d))
	}
	w.contexts = append(w.contexts, t)
	scheduled := w.current != nil
	w.releaseTurn()
	switch {
	case d <= 0:
		t.endWith(context.DeadlineExceeded)
	case !scheduled && parent.Done() != nil:
		context.AfterFunc(parent, t.checkParent)
	}
	return t, func() { t.endWith(context.Canceled) }
}

// A virtualContext is a context.Context whose deadline is a virtual time. The world polls its
// parent for cancellation, because package context would report that on another goroutine.
type virtualContext struct {
	w      *World
	parent context.Context
	at     time.Time
	ev     event
	done   chan struct{}

	mu    sync.Mutex // guards the fields below
	err   error
	funcs []*func() // functions that end derived contexts
}

var _ context.Context = (*virtualContext)(nil)

// Deadline implements context.Context.
func (t *virtualContext) Deadline() (time.Time, bool) { return t.at, true }

// Value implements context.Context.
func (t *virtualContext) Value(key any) any { return t.parent.Value(key) }

// Done implements context.Context.
func (t *virtualContext) Done() <-chan struct{} {
	t.checkParent()
	return t.done
}

// Err implements context.Context.
func (t *virtualContext) Err() error {
	t.checkParent()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// AfterFunc arranges for f to be called when t ends. Package context calls AfterFunc to propagate
// the end of t to contexts derived from it.
func (t *virtualContext) AfterFunc(f func()) (stop func() bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		go f()
		return func() bool { return false }
	}
	mine := &f
	t.funcs = append(t.funcs, mine)
	return func() bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		before := len(t.funcs)
		t.funcs = removeElement(t.funcs, mine)
		return len(t.funcs) < before
	}
}

// checkParent ends t if its parent has ended.
func (t *virtualContext) checkParent() {
	if err := t.parent.Err(); err != nil {
		t.endWith(err)
	}
}

// endWith ends t with err, unless t has already ended. It does not remove t from the world's
// contexts, because the calling goroutine need not hold the turn. dropEndedContexts does so later.
func (t *virtualContext) endWith(err error) {
	t.mu.Lock()
	if t.err != nil {
		t.mu.Unlock()
		return
	}
	t.err = err
	close(t.done)
	funcs := t.funcs
	t.funcs = nil
	t.mu.Unlock()
	for _, f := range funcs {
		(*f)()
	}
}

// fire ends t because its deadline has expired.
func (t *virtualContext) fire(*event) {
	t.endWith(context.DeadlineExceeded)
	t.w.needsCheck = true
	t.w.dropEndedContexts()
}

// dropEndedContexts removes the contexts that have ended or whose parents have ended.
func (w *World) dropEndedContexts() {
	w.contexts = slices.DeleteFunc(w.contexts, func(t *virtualContext) bool {
		ended := t.Err() != nil
		if ended {
			w.events.cancel(&t.ev)
		}
		return ended
	})
}

// checkContexts removes the contexts that have ended, and makes every waiting coroutine whose
// condition is now true runnable, because a condition may depend on a context. The caller must hold
// the turn.
func (w *World) checkContexts() {
	w.needsCheck = false
	w.dropEndedContexts()
	for _, c := range w.coroutines {
		if c.state == coWaiting && c.port != nil && !c.isKilled && c.ready() {
			c.port.waiting = removeElement(c.port.waiting, c)
			w.makeReady(c)
		}
	}
}
