package request

import (
	"context"
	"sync/atomic"
	"time"
)

// A Progressor moves bytes and runs callbacks. All its methods may be called from several goroutines at once.
type Progressor interface {
	// Progress moves bytes and runs no callbacks. It returns nil when something may be ready to trigger, at once
	// while a callback is queued; an error that matches os.ErrDeadlineExceeded when nothing happened in timeout;
	// and any other error when it cannot go on, for instance because it is closed. A negative timeout is no
	// limit, zero polls.
	Progress(timeout time.Duration) error

	// Trigger runs at most max queued callbacks, all of them if max <= 0, and returns how many it ran.
	Trigger(max int) int

	// Now reads a monotonic clock. Only differences mean something.
	Now() time.Duration
}

// A Waiter is a Progressor that goroutines can wait on by themselves, such as a context of packages hg and na. Any other is
// driven by one of those who wait at a time, in slices of 100 ms at most: news from another goroutine (its own completion, the
// end of a context) may wait that long for it.
type Waiter interface {
	Progressor

	// WaitFor drives, or sleeps while another goroutine does, until done reports true. It returns the cause of ctx when that
	// ends first, an error that matches os.ErrDeadlineExceeded after timeout (negative: no limit; zero: one look), and
	// any other when it cannot go on.
	WaitFor(ctx context.Context, timeout time.Duration, done func() bool) error

	// Wake makes everybody who waits look at done again. It does not block and calls nothing back but that.
	Wake()
}

// A Canceler can be asked to end early. Cancel does not wait: the callback comes later, inside Trigger.
type Canceler interface{ Cancel() }

// A CancelFunc is a function that is a Canceler.
type CancelFunc func()

// Cancel calls f.
func (f CancelFunc) Cancel() { f() }

// A Request is one callback that somebody waits for. Create makes one; all methods may be called from any goroutine.
type Request struct {
	class *Class

	done atomic.Bool // set with class.mu held

	// The rest is guarded by class.mu.

	err      error
	cancel   Canceler
	canceled bool // a context has ended and cancel was called
	data     any
	waits    int // that have not returned
}

// Complete ends the request with the outcome of its operation. The callback calls it, so normally it runs inside
// Trigger, but any goroutine may call it, and under any lock that the Progressor's Wake does not take. A second
// Complete without a Reset panics.
func (r *Request) Complete(err error) {
	c := r.class
	c.mu.Lock()
	if r.done.Load() {
		c.mu.Unlock()
		panic("request: Complete called twice without Reset")
	}
	r.err = err
	r.done.Store(true)
	wake := r.waits > 0
	c.mu.Unlock()
	if wake {
		c.wake()
	}
}

// Completed reports whether Complete has been called.
func (r *Request) Completed() bool {
	done, _, _ := r.result()
	return done
}

// Err returns what Complete was called with, and nil before.
func (r *Request) Err() error {
	_, _, err := r.result()
	return err
}

func (r *Request) result() (done, canceled bool, err error) {
	r.class.mu.Lock()
	defer r.class.mu.Unlock()
	return r.done.Load(), r.canceled, r.err
}

// Wait runs callbacks and moves bytes, or sleeps while another goroutine does, until r is completed or timeout has
// passed, and reports whether r is completed. It never cancels anything: after false the callback is still to come,
// and r may be waited for again. A negative timeout is no limit; zero looks once (Trigger, Progress, Trigger).
//
// Wait returns false early when Progress fails and nothing is queued. Then waiting again is of no use: only a callback
// that another goroutine is running at that moment can still complete r.
//
// A callback may Wait. The Wait whose Trigger runs that callback returns after it, even if late.
func (r *Request) Wait(timeout time.Duration) bool {
	ok, _ := r.class.wait(context.Background(), timeout, false, r)
	return ok
}

// WaitContext waits like Wait, with a context instead of a timeout, and returns the outcome of r.
//
//  1. It returns only after the callback has run, that is, after Complete was called.
//  2. When ctx ends first it calls the request's cancel function, once, and goes on driving until then.
//  3. Success wins: if Complete(nil) is called all the same, the result is nil.
//  4. Otherwise the error matches both what Complete was called with and context.Cause(ctx). But when the deadline of ctx
//     has passed it never matches context.Canceled: the cancel was only the means.
//
// There are two exceptions to the first sentence, and in both the callback may still come. If r has no cancel
// function and ctx has ended, WaitContext returns the cause at once. If Progress fails, WaitContext returns that error.
func (r *Request) WaitContext(ctx context.Context) error {
	failed := r.class.waitContext(ctx, r)
	done, canceled, err := r.result()
	var cause error
	if canceled || !done {
		cause = context.Cause(ctx)
	}
	switch {
	case done && err == nil:
		return nil
	case done:
		return withCause(ctx, err, cause)
	case failed != nil:
		return withCause(ctx, failed, cause)
	default:
		return cause
	}
}

// Reset makes r ready for another callback, with a new cancel function (or nil). The user data stays. It is for a
// request whose callback has run, or will never run because its operation did not start: a callback from before
// would complete the new round. It panics while a Wait on r has not returned.
func (r *Request) Reset(cancel func()) {
	c := r.class
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.waits > 0 {
		panic("request: Reset during a Wait")
	}
	r.done.Store(false)
	r.err, r.canceled = nil, false
	r.cancel = canceler(cancel)
}

// SetCancel replaces what WaitContext cancels. It is for an operation that is known only once it has started, and
// whose callback needed r before.
func (r *Request) SetCancel(cancel Canceler) {
	r.class.mu.Lock()
	defer r.class.mu.Unlock()
	r.cancel = cancel
}

// canceler keeps a nil function a nil interface.
func canceler(f func()) Canceler {
	if f == nil {
		return nil
	}
	return CancelFunc(f)
}

// SetData attaches any value to r.
func (r *Request) SetData(v any) {
	r.class.mu.Lock()
	defer r.class.mu.Unlock()
	r.data = v
}

// Data returns the value of the last SetData, or nil.
func (r *Request) Data() any {
	r.class.mu.Lock()
	defer r.class.mu.Unlock()
	return r.data
}
