package na

import (
	"fmt"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"runtime/debug"
)

// A libraryPanic is one of the library itself, while it handled what a peer had sent.
type libraryPanic struct {
	value any
	stack []byte
}

// caughtPanic makes a Panic of what recover has returned. It is called by the deferred function.
func caughtPanic(v any) *libraryPanic { return &libraryPanic{value: v, stack: debug.Stack()} }

// Error returns what callers are told.
func (p *libraryPanic) Error() string {
	return fmt.Sprintf("a defect of Quicksilver: it panicked while it handled what a peer had sent, please report what was logged: %v", p.value)
}

// Unwrap returns the code of it.
func (p *libraryPanic) Unwrap() error { return ErrIO }

// reportPanic counts and logs a panic that has been recovered. The logger is the program's: it runs on a goroutine of its own, because the caller
// may hold locks.
func (c *Context) reportPanic(p *libraryPanic) {
	c.panics.Add(1)
	log, id, broken := c.class.cfg.logger(), c.id, c.isBroken()
	c.Spawn(func() {
		log.Error("na: a panic while the bytes of a peer were handled: the process goes on, please report it",
			"context", id, "broken", broken, "panic", p.value, "stack", string(p.stack))
	})
}

// breakBy says that the endpoint has ended because of err, which every operation gets, and Progress once nothing is ready.
func (c *Context) breakBy(err error) {
	if c.broken.CompareAndSwap(nil, &err) {
		c.wakeLeader()
	}
}

// isBroken reports whether breakBy was called.
func (c *Context) isBroken() bool { return c.broken.Load() != nil }

// brokenBy returns why c has ended without Close, or nil.
func (c *Context) brokenBy() error {
	if err := c.broken.Load(); err != nil && c.state.Load() <= ctxDraining {
		return *err
	}
	return nil
}

// onPanic deals with a panic in a method of at, with no lock held: it ends what at stands for, and nothing else.
func (c *Context) onPanic(v, at any) {
	p := caughtPanic(v)
	if cut, ok := at.(carrier.Cutter); ok {
		cut.Cut(p)
	}
	c.reportPanic(p)
}
