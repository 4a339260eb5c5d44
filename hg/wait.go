package hg

import (
	"context"
	"errors"
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
	if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil {
		return ErrTimeout
	}
	return err
}

// Sleep is WaitFor that nothing ends before d has passed by Now, which is nil: in virtual time in a simulator. It returns the cause of ctx
// if that ends first, and ErrClosed as Wait does.
func (c *Context) Sleep(ctx context.Context, d time.Duration) error {
	err := c.WaitFor(ctx, max(d, 0), func() bool { return false })
	if ctx.Err() == nil && CodeOf(err) == ErrTimeout {
		return nil
	}
	return err
}

// drive is hghook.Drive.
func (c *Context) drive(ctx context.Context, around func(run func(lone any))) error {
	if around == nil {
		return c.loop.Drive(ctx, nil)
	}
	var (
		lone *Request
		pass func(instead func() bool)
	)
	take := func(int) int {
		if c.takeLone(lone) {
			return 1
		}
		return 0
	}
	instead := func() bool { return lone != nil && c.nctx.UserCode(take, 0) == 1 }
	run := func(r any) {
		lone, _ = r.(*Request)
		pass(instead)
	}
	return c.loop.Drive(ctx, func(p func(instead func() bool)) {
		pass = p
		around(run)
	})
}

// takeLone takes in the request that has come if it is all that waits, and reports whether it was. It is stored in r if it is one for
// Config.Dispatch that may be run.
func (c *Context) takeLone(r *Request) bool {
	if c.nctx.Settled() != 1 {
		return false
	}
	env := c.nctx.TakeLone()
	if env == nil {
		return false
	}
	defer c.nctx.Unhold() // deferred: an Inline handler may panic, or end the goroutine
	c.receive(env, r)
	return true
}

// Wake makes everybody who waits look again: Wait at its condition; and one Progress that sleeps now, or else the next
// one, returns nil.
func (c *Context) Wake() {
	c.nctx.Wake()
}
