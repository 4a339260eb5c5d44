package hg

import (
	"context"
	"time"
)

// Wait drives c, or sleeps while another goroutine does, until done reports true (nil), ctx ends (its cause), or c is closed
// and drained (ErrClosed). It runs what is queued, callbacks and handlers of others too, one at a time on this goroutine, and
// looks at done after each; where Config.Dispatch is set, no handlers but those that are Inline. It may be called inside one.
//
// Whoever makes done true calls Wake. done is quick, may be called by any goroutine that waits, and takes no lock that is held
// around a call of this module.
func (c *Context) Wait(ctx context.Context, done func() bool) error { return c.nctx.Wait(ctx, done) }

// WaitFor is Wait that gives up with ErrTimeout after timeout by Now; a negative one is no limit, zero looks once.
func (c *Context) WaitFor(ctx context.Context, timeout time.Duration, done func() bool) error {
	return c.nctx.WaitFor(ctx, timeout, done)
}

// Wake makes everybody who waits look again: Wait at its condition; and one Progress that sleeps now, or else the next
// one, returns nil.
func (c *Context) Wake() { c.nctx.Wake() }
