package na

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/turns"
)

// Wait drives c, or sleeps while another goroutine does, until done reports true (nil), ctx ends (its cause), or c is closed
// and drained (ErrClosed). It runs what is queued, one callback at a time, those of a layer above too, and looks at done
// after each.
//
// Whoever makes done true calls Wake. done is quick, may be called by any goroutine that waits, and takes no lock that is held
// around a call of this package.
func (c *Context) Wait(ctx context.Context, done func() bool) error { return c.WaitFor(ctx, -1, done) }

// WaitFor is Wait that gives up with ErrTimeout after timeout by Now; a negative one is no limit, zero looks once.
func (c *Context) WaitFor(ctx context.Context, timeout time.Duration, done func() bool) error {
	err := c.turns.Wait(ctx, timeout, done)
	if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil {
		return ErrTimeout
	}
	return err
}

// A Waiter is something that ends once, and that one goroutine waits for. It is made once to be used often.
type Waiter = turns.Waiter

// NewWaiter returns a Waiter of c. Its Wait is that of c.
func (c *Context) NewWaiter() *Waiter { return c.turns.NewWaiter() }

// Wake makes everybody who waits look again: Wait at its condition; and one Progress that sleeps now, or else the next
// one, returns nil.
func (c *Context) Wake() {
	c.woken.Store(true)
	c.rouse()
	c.callFollowers(-1)
	c.turns.Wake()
}

// A Layer is what runs callbacks of its own above a Context, in its own Trigger.
type Layer struct {
	Trigger func(max int) int // runs those of the Context, and at most max of its own
	Begin   func() Pass       // encloses, with End, the callbacks of a pass of those who Wait; nil: nothing to do
	End     func(Pass)
}

// A Pass is what is held back while the callbacks of a pass run.
type Pass = turns.Pass

// Above says that there is a layer above c. It is called before anybody drives c.
func (c *Context) Above(l Layer) { c.above.Store(&l) }

// Hold keeps c from being drained until Unhold: a callback is about to be queued above. It reports false when c has been
// drained already: the callback would never run.
func (c *Context) Hold() bool {
	if c.live.Add(1) > 0 {
		return true
	}
	c.live.Add(-1)
	return false
}

// Unhold says that a callback has returned, or was not queued after all.
func (c *Context) Unhold() { c.left() }

// EnterApart returns run(n), which is code of the program that the layer above runs outside Trigger: meanwhile Inside reports true.
func (c *Context) EnterApart(run func(int) int, n int) int { return c.apart.Run(run, n) }

// Inside reports whether the caller is inside a callback of c, or of the layer above. It walks the stack: for rare calls only.
func (c *Context) Inside() bool { return c.mark.Inside() || c.apart.Inside() }

// driver is a Context as package turns drives it.
type driver Context

func (d *driver) ctx() *Context { return (*Context)(d) }

// Progress implements turns.Driver. A Wake that was meant for another Progress does not end it.
func (d *driver) Progress(timeout time.Duration, stirred func() bool, sleeps func()) error {
	return d.ctx().progress(timeout, stirred, sleeps)
}

// Ready implements turns.Driver.
func (d *driver) Ready() bool { return d.ctx().queued() }

// Trigger implements turns.Driver.
func (d *driver) Trigger(max int) int {
	if above := d.above.Load(); above != nil {
		return above.Trigger(max)
	}
	return d.ctx().Trigger(max)
}

// Stir implements turns.Driver: one of those who are in Progress is the leader of those who wait.
func (d *driver) Stir() {
	d.ctx().rouse()
	d.ctx().callFollowers(-1)
}

// Now implements turns.Driver.
func (d *driver) Now() time.Duration { return d.ctx().Now() }

// A batcher is a driver whose callbacks are run in one go. In a simulator everybody drives by itself.
type batcher struct{ *driver }

func (b batcher) Cork() bool   { return b.ctx().Cork() }
func (b batcher) Uncork()      { b.ctx().Uncork() }
func (b batcher) Flush()       { b.ctx().Flush() }
func (b batcher) Inside() bool { return b.mark.Inside() }

func (b batcher) Begin() (p Pass) {
	if above := b.above.Load(); above != nil && above.Begin != nil {
		p = above.Begin()
	}
	return p
}

func (b batcher) End(p Pass) {
	if above := b.above.Load(); above != nil && above.End != nil {
		above.End(p)
	}
}

func (c *Context) newTurns() *turns.Table {
	if c.driver != nil {
		return turns.New((*driver)(c), true)
	}
	return turns.New(batcher{(*driver)(c)}, false)
}
