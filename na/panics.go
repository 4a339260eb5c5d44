package na

import (
	"fmt"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"runtime/debug"
)

// A libraryPanic is an error that wraps a panic in this library, recovered while handling data from
// a peer.
type libraryPanic struct {
	value any
	stack []byte
}

// caughtPanic returns an error that holds v, the result of recover, and the current stack. It must
// be called from the function that recovered, so that the stack includes the panic.
func caughtPanic(v any) *libraryPanic { return &libraryPanic{value: v, stack: debug.Stack()} }

// Error implements error.
func (p *libraryPanic) Error() string {
	return fmt.Sprintf("internal panic while handling data from a peer, please report it: %v", p.value)
}

// Unwrap returns ErrIO, so that CodeOf reports a panic as ErrIO.
func (p *libraryPanic) Unwrap() error { return ErrIO }

// reportPanic counts and logs p. It calls the user's logger in a new goroutine, because the caller
// may hold locks.
func (c *Context) reportPanic(p *libraryPanic) {
	c.panics.Add(1)
	log, id, broken := c.class.cfg.logger(), c.id, c.isBroken()
	c.Spawn(func() {
		log.Error("na: internal panic while handling data from a peer, please report it",
			"context", id, "broken", broken, "panic", p.value, "stack", string(p.stack))
	})
}

// breakBy marks c as broken because of err and wakes the goroutine that polls it. Only the first
// call has an effect. Progress returns err once nothing else is ready.
func (c *Context) breakBy(err error) {
	if c.broken.CompareAndSwap(nil, &err) {
		c.wakeLeader()
	}
}

// isBroken reports whether breakBy has been called.
func (c *Context) isBroken() bool { return c.broken.Load() != nil }

// brokenBy returns the error that broke c. It returns nil if c is not broken, or if c is being
// closed, because then its operations fail in any case.
func (c *Context) brokenBy() error {
	if err := c.broken.Load(); err != nil && c.state.Load() <= ctxDraining {
		return *err
	}
	return nil
}

// onPanic handles a panic with value v in a method of at that was called with no lock held. If at
// implements carrier.Cutter, onPanic closes at's connection. Other connections are not affected.
func (c *Context) onPanic(v, at any) {
	p := caughtPanic(v)
	if cut, ok := at.(carrier.Cutter); ok {
		cut.Cut(p)
	}
	c.reportPanic(p)
}
