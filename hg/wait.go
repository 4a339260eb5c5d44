package hg

import (
	"context"
	"os"
	"time"
)

// Wait drives c, or sleeps while another goroutine does, until done returns true (nil), ctx ends
// (its cause), or c is closed and drained (ErrClosed). It runs queued callbacks and handlers, also
// those of other goroutines, one at a time on this goroutine, and calls done after each; if
// Config.Dispatch is set, the only handlers it runs are Inline ones. It may be called inside a
// callback or handler.
//
// Call Wake when done becomes true. done must be quick, may be called from any goroutine that
// waits, and must not take a lock that is held around a call of this module.
func (c *Context) Wait(ctx context.Context, done func() bool) error { return c.WaitFor(ctx, -1, done) }

// WaitFor is Wait with a timeout by Now, after which it returns ErrTimeout; a negative timeout is
// no limit, zero polls once.
func (c *Context) WaitFor(ctx context.Context, timeout time.Duration, done func() bool) error {
	err := c.loop.Wait(ctx, timeout, done)
	if err != os.ErrDeadlineExceeded { // compared with ==: a cause of ctx may match it
		return err
	}
	if ctx.Err() != nil { // ctx has ended since the loop checked it
		return context.Cause(ctx)
	}
	return ErrTimeout
}

// Sleep drives c for the time d by Now, which is virtual time in a simulator, and returns nil. It
// returns the cause of ctx if that ends first, and ErrClosed as Wait does.
func (c *Context) Sleep(ctx context.Context, d time.Duration) error {
	err := c.loop.Wait(ctx, max(d, 0), func() bool { return false })
	if err == os.ErrDeadlineExceeded { // compared with ==: a cause of ctx may match it
		return nil
	}
	return err
}

// Wake wakes every goroutine in Wait, which then calls done again; and one Progress that sleeps
// now, or else the next one, returns nil. It does not block.
func (c *Context) Wake() {
	c.nctx.Wake()
}
