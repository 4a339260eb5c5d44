package hg

import (
	"context"
	"os"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/errtext"
)

// Wait blocks until done returns true, ctx is done, or c is closed and drained. It returns nil, the
// cause of ctx, or ErrClosed, respectively. While it waits, it drives c, or sleeps if another
// goroutine drives c. Wait runs queued callbacks and handlers, including those of other goroutines,
// one at a time on the calling goroutine, and calls done after each. If Config.Dispatch is set, the
// only handlers that it runs are Inline ones. Wait may be called within a callback or handler.
//
// In a coroutine of a simulator, the deadline of ctx must be in virtual time (see
// [na.Context.WithTimeout]). Otherwise Wait, WaitFor and Sleep return an error that matches
// ErrInvalid, without waiting.
//
// The program must call Wake when done becomes true. done must be quick and must not acquire a lock
// that is held during a call into this module. It may be called from any waiting goroutine.
func (c *Context) Wait(ctx context.Context, done func() bool) error { return c.WaitFor(ctx, -1, done) }

// WaitFor is like Wait, but returns ErrTimeout once the timeout expires, as measured by Now. A
// negative timeout means no limit, and zero polls once.
func (c *Context) WaitFor(ctx context.Context, timeout time.Duration, done func() bool) error {
	if err := c.checkDeadline(ctx); err != nil {
		return errtext.Wrap("hg: wait", err)
	}
	err := c.loop.Wait(ctx, timeout, done)
	if err != os.ErrDeadlineExceeded { // compared with ==, because a cause of ctx may match it
		return err
	}
	if ctx.Err() != nil { // ctx was done after the loop last checked it
		return context.Cause(ctx)
	}
	return ErrTimeout
}

// Sleep drives c for the duration d, as measured by Now, and returns nil. In a simulator that is
// virtual time. If ctx is done first, Sleep returns the cause of ctx. If c is closed and drained,
// it returns ErrClosed.
func (c *Context) Sleep(ctx context.Context, d time.Duration) error {
	if err := c.checkDeadline(ctx); err != nil {
		return errtext.Wrap("hg: sleep", err)
	}
	err := c.loop.Wait(ctx, max(d, 0), func() bool { return false })
	if err == os.ErrDeadlineExceeded { // compared with ==, because a cause of ctx may match it
		return nil
	}
	return err
}

// checkDeadline returns an error if the caller runs in a coroutine of a simulator and the deadline of
// ctx is in real time, in which case a seed would not replay.
func (c *Context) checkDeadline(ctx context.Context) error {
	if !c.nctx.Scheduled() {
		return nil
	}
	_, err := c.timeLeft(ctx)
	return err
}

// Wake wakes every goroutine in Wait, each of which then calls done again. It also makes one call
// of Progress return nil, which is either the call that is sleeping or the next call. Wake does not
// block.
func (c *Context) Wake() {
	c.nctx.Wake()
}
