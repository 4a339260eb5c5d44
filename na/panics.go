package na

import (
	"fmt"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"runtime/debug"
)

// A libraryPanic is the error for a panic of this library, recovered while it was handling data
// from a peer.
type libraryPanic struct {
	value any
	stack []byte
}

// caughtPanic returns the error for a recovered panic. v is the result of recover. It must be
// called from the deferred function so that the recorded stack is that of the panic.
func caughtPanic(v any) *libraryPanic { return &libraryPanic{value: v, stack: debug.Stack()} }

// Error implements error.
func (p *libraryPanic) Error() string {
	return fmt.Sprintf("internal panic while handling data from a peer, please report it: %v", p.value)
}

// Unwrap returns ErrIO, the code of the error.
func (p *libraryPanic) Unwrap() error { return ErrIO }

// reportPanic counts and logs a recovered panic. It calls the user's logger on a new goroutine,
// because the caller may hold locks.
func (c *Context) reportPanic(p *libraryPanic) {
	c.panics.Add(1)
	log, id, broken := c.class.cfg.logger(), c.id, c.isBroken()
	c.Spawn(func() {
		log.Error("na: internal panic while handling data from a peer, please report it",
			"context", id, "broken", broken, "panic", p.value, "stack", string(p.stack))
	})
}

// breakBy records err as the reason why the endpoint is broken. Progress returns err once nothing
// else is ready.
func (c *Context) breakBy(err error) {
	if c.broken.CompareAndSwap(nil, &err) {
		c.wakeLeader()
	}
}

// isBroken reports whether breakBy has been called.
func (c *Context) isBroken() bool { return c.broken.Load() != nil }

// brokenBy returns the error that broke c, or nil if c is not broken or is being closed anyway.
func (c *Context) brokenBy() error {
	if err := c.broken.Load(); err != nil && c.state.Load() <= ctxDraining {
		return *err
	}
	return nil
}

// onPanic handles panic value v of a method of at, which was called without locks held. It closes
// only at's connection.
func (c *Context) onPanic(v, at any) {
	p := caughtPanic(v)
	if cut, ok := at.(carrier.Cutter); ok {
		cut.Cut(p)
	}
	c.reportPanic(p)
}
