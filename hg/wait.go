package hg

import (
	"context"
	"os"
	"time"
)

// Wait drives c, or sleeps while another goroutine does, until done reports true (nil), ctx ends (its cause), or c is closed
// and drained (ErrClosed). It runs what is queued, callbacks and handlers of others too, one at a time on this goroutine, and
// looks at done after each; where Config.Dispatch is set, no handlers but those that are Inline. It may be called inside one.
//
// Whoever makes done true calls Wake. done is quick, may be called by any goroutine that waits, and takes no lock that is held
// around a call of this module.
func (c *Context) Wait(ctx context.Context, done func() bool) error { return c.WaitFor(ctx, -1, done) }

// WaitFor is Wait that gives up with ErrTimeout after timeout by Now; a negative one is no limit, zero looks once.
func (c *Context) WaitFor(ctx context.Context, timeout time.Duration, done func() bool) error {
	err := c.loop.Wait(ctx, timeout, done)
	if err != os.ErrDeadlineExceeded { // that itself; a cause of ctx may match it
		return err
	}
	if ctx.Err() != nil { // since the loop has looked
		return context.Cause(ctx)
	}
	return ErrTimeout
}

// Sleep is WaitFor that nothing ends before d has passed by Now, which is nil: in virtual time in a simulator. It returns the cause of ctx
// if that ends first, and ErrClosed as Wait does.
func (c *Context) Sleep(ctx context.Context, d time.Duration) error {
	err := c.loop.Wait(ctx, max(d, 0), func() bool { return false })
	if err == os.ErrDeadlineExceeded { // that itself; a cause of ctx may match it
		return nil
	}
	return err
}

// Wake makes everybody who waits look again: Wait at its condition; and one Progress that sleeps now, or else the next
// one, returns nil.
func (c *Context) Wake() {
	c.nctx.Wake()
}
