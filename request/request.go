package request

import (
	"context"
	"sync/atomic"
	"time"
)

// A Progressor moves bytes and runs callbacks. Its methods may be called by several goroutines at
// the same time.
type Progressor interface {
	// Progress moves bytes and runs no callbacks. It blocks until a callback may be queued, and
	// returns nil then; at once if one is queued already. It returns an error that matches
	// os.ErrDeadlineExceeded when nothing happened within timeout, and any other error when it
	// cannot continue, for instance because it is closed. A negative timeout is no limit; zero
	// polls.
	Progress(timeout time.Duration) error

	// Trigger runs at most max queued callbacks, all of them if max <= 0, and returns how many it ran.
	Trigger(max int) int

	// Now returns the time of a monotonic clock. Only differences of its values have a meaning.
	Now() time.Duration
}

// A Waiter is a Progressor that implements waiting itself, such as a context of packages hg and na.
// Any other Progressor is driven by one waiting goroutine at a time, in slices of at most 100 ms:
// that goroutine may notice up to 100 ms late that its request was completed by another goroutine,
// or that its context is done.
type Waiter interface {
	Progressor

	// WaitFor drives progress, or sleeps while another goroutine does, until done reports true. It
	// returns context.Cause(ctx) when ctx is done first, an error that matches
	// os.ErrDeadlineExceeded after timeout (negative: no limit; zero: one poll), and any other
	// error when it cannot continue.
	WaitFor(ctx context.Context, timeout time.Duration, done func() bool) error

	// Wake makes every goroutine in WaitFor call its done again. Wake does not block and may itself
	// call done functions.
	Wake()
}

// A Canceler is an operation that can be canceled. Cancel does not block: the callback runs later,
// inside Trigger.
type Canceler interface{ Cancel() }

// A CancelFunc is a function that is a Canceler.
type CancelFunc func()

// Cancel calls f.
func (f CancelFunc) Cancel() { f() }

// A Request represents the callback of one operation, so that goroutines can wait for it.
// Class.Create makes one. All methods may be called by any goroutine.
type Request struct {
	class *Class

	done atomic.Bool // set with class.mu held

	// The rest is guarded by class.mu.

	err      error
	cancel   Canceler
	canceled bool // cancel was called because a context was done
	data     any
	waiters  int // calls of Wait and its variants that have not returned
}

// Complete ends the request with the outcome of its operation. The callback of the operation calls
// it, so it normally runs inside Trigger. Any goroutine may call it, also with locks held, except
// those that the Progressor's Wake takes. A second Complete without a Reset panics.
func (r *Request) Complete(err error) {
	c := r.class
	c.mu.Lock()
	if r.done.Load() {
		c.mu.Unlock()
		panic("request: Complete called twice without Reset")
	}
	r.err = err
	r.done.Store(true)
	wake := r.waiters > 0
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

// Err returns the error that Complete was called with, and nil before that.
func (r *Request) Err() error {
	_, _, err := r.result()
	return err
}

// result returns the state of r.
func (r *Request) result() (done, canceled bool, err error) {
	r.class.mu.Lock()
	defer r.class.mu.Unlock()
	return r.done.Load(), r.canceled, r.err
}

// Wait runs callbacks and moves bytes, or sleeps while another goroutine does, until r is completed
// or timeout has passed, and reports whether r is completed. It cancels nothing: after false the
// callback is still to come, and Wait may be called again. A negative timeout is no limit; zero
// polls once (Trigger, Progress, Trigger).
//
// Wait returns false early when Progress fails and no callback is queued. Another Wait is then
// useless: only a callback that another goroutine is running at that moment can still complete r.
//
// A callback may call Wait. The Wait that runs this callback cannot return before it does, even if
// its timeout has passed.
func (r *Request) Wait(timeout time.Duration) bool {
	ok, _ := r.class.wait(context.Background(), timeout, false, r)
	return ok
}

// WaitContext waits like Wait, with a context instead of a timeout, and returns the outcome of r.
//
//  1. It returns only after the callback has run, that is, after Complete was called.
//  2. If ctx is done first, it calls the cancel function of the request, once, and continues to
//     drive until then.
//  3. Success wins: if Complete(nil) is called nevertheless, the result is nil.
//  4. Otherwise the error matches both the error of Complete and context.Cause(ctx). But if the
//     deadline of ctx has passed it never matches context.Canceled.
//
// There are two exceptions to rule 1; in both the callback may still run later. If r has no cancel
// function and ctx is done, WaitContext returns the cause at once. If Progress fails, WaitContext
// returns that error.
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

// Reset makes r ready for another operation, with a new cancel function (or nil). The user data
// stays. Call it only when the callback of the previous operation has run, or will never run
// because the operation did not start: a late callback would complete the new operation. It panics
// while a Wait for r has not returned.
func (r *Request) Reset(cancel func()) {
	c := r.class
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.waiters > 0 {
		panic("request: Reset during a Wait")
	}
	r.done.Store(false)
	r.err, r.canceled = nil, false
	r.cancel = toCanceler(cancel)
}

// SetCancel replaces the Canceler that WaitContext calls. It is for an operation that exists only
// once it has started, while its callback needed r before that.
func (r *Request) SetCancel(cancel Canceler) {
	r.class.mu.Lock()
	defer r.class.mu.Unlock()
	r.cancel = cancel
}

// toCanceler returns f as a Canceler, and a nil interface for a nil function.
func toCanceler(f func()) Canceler {
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
