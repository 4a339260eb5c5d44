package request

import (
	"context"
	"sync/atomic"
	"time"
)

// A Progressor moves bytes and runs callbacks. Its methods must be safe for concurrent use.
type Progressor interface {
	// Progress moves bytes and runs no callbacks. It blocks until a callback may be queued, and
	// then returns nil. If a callback is already queued, it returns immediately. It returns an
	// error that matches os.ErrDeadlineExceeded if nothing happened within timeout, and any other
	// error if it cannot continue, for instance because it is closed. A negative timeout means no
	// limit. Zero means to poll without blocking.
	Progress(timeout time.Duration) error

	// Trigger runs up to max queued callbacks, or all of them if max <= 0, and returns the number
	// of callbacks run.
	Trigger(max int) int

	// Now returns the time of a monotonic clock. Only differences between its values are
	// meaningful.
	Now() time.Duration
}

// A Waiter is a Progressor that implements waiting itself, such as a context of package hg or na.
// Any other Progressor is driven by one waiting goroutine at a time, in slices of at most 100 ms.
// That goroutine may take up to 100 ms to notice that another goroutine has completed its request,
// or that its context is done.
type Waiter interface {
	Progressor

	// WaitFor drives progress, or sleeps while another goroutine does, until done reports true. It
	// returns context.Cause(ctx) if ctx is done first, an error that matches os.ErrDeadlineExceeded
	// after timeout, and any other error if it cannot continue. A negative timeout means no limit.
	// Zero means to poll once.
	WaitFor(ctx context.Context, timeout time.Duration, done func() bool) error

	// Wake makes every goroutine in WaitFor call its done function again. Wake does not block, and
	// may itself call done functions.
	Wake()
}

// A Canceler is an operation that can be canceled. Cancel must not block. The operation's callback
// runs later, in Trigger.
type Canceler interface{ Cancel() }

// CancelFunc is an adapter that allows a function to be used as a Canceler.
type CancelFunc func()

// Cancel calls f.
func (f CancelFunc) Cancel() { f() }

// A Request represents the callback of one operation, so that goroutines can wait for it. Requests
// are created by Class.Create and are safe for concurrent use.
type Request struct {
	class *Class

	done atomic.Bool // set with class.mu held

	// The fields below are guarded by class.mu.

	err      error
	cancel   Canceler
	canceled bool // cancel was called because a context was done
	data     any
	waiters  int // number of calls to Wait and its variants in progress
}

// Complete completes the request with the outcome of its operation. The operation's callback calls
// it, so it normally runs in Trigger. Any goroutine may call Complete, even while holding locks,
// except for locks that the Progressor's Wake acquires. A second Complete without a Reset panics.
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

// Err returns the error passed to Complete, or nil if Complete has not been called.
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

// Wait runs callbacks and moves bytes, or sleeps while another goroutine does so, until r is
// completed or timeout has passed, and reports whether r is completed. It cancels nothing: after
// Wait returns false, the callback is still pending and Wait may be called again. A negative
// timeout means no limit. Zero means to poll once (Trigger, Progress, Trigger).
//
// Wait returns false early if Progress fails and no callback is queued. Calling Wait again is then
// useless, because r can be completed only by a callback that another goroutine is already running.
//
// A callback may call Wait. A Wait that runs such a callback cannot return before the callback
// does, even if its timeout has passed.
func (r *Request) Wait(timeout time.Duration) bool {
	ok, _ := r.class.wait(context.Background(), timeout, false, r)
	return ok
}

// WaitContext is like Wait, with a context instead of a timeout, and returns the outcome of r.
//
//  1. It returns only after the callback has run, that is, after Complete was called.
//  2. If ctx is done first, it calls the request's cancel function, once, and continues to drive
//     progress until the callback has run.
//  3. Success wins: if Complete(nil) is called nevertheless, the result is nil.
//  4. Otherwise the error matches both the error passed to Complete and context.Cause(ctx). If the
//     deadline of ctx has passed, it does not match context.Canceled.
//
// Rule 1 has two exceptions, and in both the callback may still run later. If r has no cancel
// function and ctx is done, WaitContext returns the cause immediately. If Progress fails,
// WaitContext returns that error.
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

// Reset prepares r for another operation with a new cancel function, which may be nil. The user
// data is kept. Call Reset only if the callback of the previous operation has run, or never will
// because the operation did not start. Otherwise a late callback would complete the new operation.
// Reset panics if a Wait for r is in progress.
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

// SetCancel replaces the Canceler that WaitContext calls. Use it if the operation's callback needs
// r, and the operation is not available as a Canceler until it has started.
func (r *Request) SetCancel(cancel Canceler) {
	r.class.mu.Lock()
	defer r.class.mu.Unlock()
	r.cancel = cancel
}

// toCanceler returns f as a Canceler, or a nil interface if f is nil.
func toCanceler(f func()) Canceler {
	if f == nil {
		return nil
	}
	return CancelFunc(f)
}

// SetData attaches v to r.
func (r *Request) SetData(v any) {
	r.class.mu.Lock()
	defer r.class.mu.Unlock()
	r.data = v
}

// Data returns the value passed to the last SetData, or nil.
func (r *Request) Data() any {
	r.class.mu.Lock()
	defer r.class.mu.Unlock()
	return r.data
}
