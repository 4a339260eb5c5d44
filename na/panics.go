package na

import (
	"fmt"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"runtime/debug"
)

// A libraryPanic is the error of a recovered panic of this library that occurred while it handled
// data from a peer.
type libraryPanic struct {
	value any
	stack []byte
}

// caughtPanic returns the error of a panic; v is the result of recover. The deferred function calls
// it, so that the stack is that of the panic.
func caughtPanic(v any) *libraryPanic { return &libraryPanic{value: v, stack: debug.Stack()} }

// Error implements error.
func (p *libraryPanic) Error() string {
	return fmt.Sprintf("internal panic while handling data from a peer, please report it: %v", p.value)
}

// Unwrap returns the code of the error.
func (p *libraryPanic) Unwrap() error { return ErrIO }

// reportPanic counts and logs a recovered panic. It runs the user's logger on a goroutine of its
// own, because the caller may hold locks.
func (c *Context) reportPanic(p *libraryPanic) {
	c.panics.Add(1)
	log, id, broken := c.class.cfg.logger(), c.id, c.isBroken()
	c.Spawn(func() {
		log.Error("na: internal panic while handling data from a peer, please report it",
			"context", id, "broken", broken, "panic", p.value, "stack", string(p.stack))
	})
}

// breakBy records err as the reason for the end of the endpoint. Progress returns err when nothing
// is ready any more.
func (c *Context) breakBy(err error) {
	if c.broken.CompareAndSwap(nil, &err) {
		c.wakeLeader()
	}
}

// isBroken reports whether breakBy was called.
func (c *Context) isBroken() bool { return c.broken.Load() != nil }

// brokenBy returns the error that has terminated c without Close, or nil.
func (c *Context) brokenBy() error {
	if err := c.broken.Load(); err != nil && c.state.Load() <= ctxDraining {
		return *err
	}
	return nil
}

// onPanic handles a panic in a method of at, which was called without a lock. It ends only the
// connection of at.
func (c *Context) onPanic(v, at any) {
	p := caughtPanic(v)
	if cut, ok := at.(carrier.Cutter); ok {
		cut.Cut(p)
	}
	c.reportPanic(p)
}
