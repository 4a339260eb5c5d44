package sim

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// Virtual time zero is epoch, for the deadlines of contexts; what is before horizon is virtual time, for no clock of today shows it.
var (
	epoch   = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	horizon = epoch.AddDate(20, 0, 0)
)

// lastTime is the last deadline that a context can have in virtual time.
var lastTime = horizon.Sub(epoch) - 1

// Scheduled implements simhook.Scheduler.
func (in *instance) Scheduled() bool { return in.node.w.cur != nil }

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

// Spawn runs f in a new coroutine on the node of the coroutine that calls it. It panics when none does: see [World.Go].
func (w *World) Spawn(f func()) {
	if w.cur == nil {
		panic("sim: Spawn is called outside the coroutines of the world; use World.Go, which names a node")
	}
	w.cur.node.Go(f)
}

// Until returns how much virtual time is left to the deadline of a context that [World.WithTimeout] has made, or that a handler
// has. In a coroutine the error matches codes.ErrInvalid for any other deadline: it is one by the clock on the wall, which does
// not replay. Elsewhere that is how much real time is left.
func (w *World) Until(deadline time.Time) (time.Duration, error) {
	switch {
	case deadline.Before(horizon):
		return deadline.Sub(epoch) - w.Now(), nil
	case w.cur != nil:
		return 0, codes.WithText(codes.ErrInvalid, fmt.Sprintf("the context of coroutine %s has a deadline in real time; make it with "+
			"sim.World.WithTimeout or na.Context.WithTimeout instead of context.WithTimeout", w.cur.name))
	}
	return time.Until(deadline), nil
}

// WithTimeout is context.WithTimeout in virtual time: the context ends with context.DeadlineExceeded when d has passed, when
// cancel is called, or with parent. Its Deadline is that much after 2000-01-01 UTC, which is virtual time zero, so a
// context.WithTimeout below it changes nothing. One that would be later than 20 years after that is then.
func (w *World) WithTimeout(parent context.Context, d time.Duration) (ctx context.Context, cancel context.CancelFunc) {
	d = min(d, lastTime-w.Now())
	t := &timed{w: w, parent: parent, at: epoch.Add(w.after(max(d, 0))), done: make(chan struct{})}
	t.ev = event{act: t, slow: true}
	if before, ok := parent.Deadline(); ok && before.Before(t.at) {
		t.at = before
	}
	w.takeTurn()
	if d > 0 {
		w.events.set(&t.ev, w.after(d))
	}
	w.timed = append(w.timed, t)
	scheduled := w.cur != nil
	w.give()
	switch {
	case d <= 0:
		t.end(context.DeadlineExceeded)
	case !scheduled && parent.Done() != nil:
		context.AfterFunc(parent, t.follow)
	}
	return t, func() { t.end(context.Canceled) }
}

// A timed is a context that ends by virtual time. The world looks whether its parent has ended: package context tells that to
// no one but on a goroutine.
type timed struct {
	w      *World
	parent context.Context
	at     time.Time
	ev     event
	done   chan struct{}

	mu    sync.Mutex // guards the fields below
	err   error
	funcs []*func() // that end contexts below
}

var _ context.Context = (*timed)(nil)

// Deadline implements context.Context.
func (t *timed) Deadline() (time.Time, bool) { return t.at, true }

// Value implements context.Context.
func (t *timed) Value(key any) any { return t.parent.Value(key) }

// Done implements context.Context.
func (t *timed) Done() <-chan struct{} {
	t.follow()
	return t.done
}

// Err implements context.Context.
func (t *timed) Err() error {
	t.follow()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// AfterFunc is how package context has the contexts below end with t.
func (t *timed) AfterFunc(f func()) (stop func() bool) {
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
		t.funcs = without(t.funcs, mine)
		return len(t.funcs) < before
	}
}

// follow ends t if its parent has ended.
func (t *timed) follow() {
	if err := t.parent.Err(); err != nil {
		t.end(err)
	}
}

// end ends t, unless it has ended. The world forgets it later: whoever looks at a context may have the turn.
func (t *timed) end(err error) {
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

// fire is the deadline.
func (t *timed) fire(*event) {
	t.end(context.DeadlineExceeded)
	t.w.stirred = true
	t.w.forgetTimed()
}

// forgetTimed lets go of contexts that have ended, or whose parents have.
func (w *World) forgetTimed() {
	w.timed = slices.DeleteFunc(w.timed, func(t *timed) bool {
		ended := t.Err() != nil
		if ended {
			w.events.unset(&t.ev)
		}
		return ended
	})
}

// stir looks at the contexts whose parents may have ended, and then at all who wait: one of their contexts may have. The turn is
// held.
func (w *World) stir() {
	w.stirred = false
	w.forgetTimed()
	for _, c := range w.all {
		if c.state == coWaiting && c.port != nil && !c.dying && c.ready() {
			c.port.cos = without(c.port.cos, c)
			w.readied(c)
		}
	}
}
