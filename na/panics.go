package na

import (
	"fmt"
	"runtime/debug"
)

// A Cutter is a Pollable that ends the connection which it is for, and no other, because of a panic of its own. It is called on the goroutine
// that leads, with no lock held.
type Cutter interface {
	Cut(err error)
}

// A Panic is one of the library itself, while it handled what a peer had sent.
type Panic struct {
	Value any
	Stack []byte
}

// Caught makes a Panic of what recover has returned. It is called by the deferred function.
func Caught(v any) *Panic { return &Panic{Value: v, Stack: debug.Stack()} }

// Error returns what callers are told.
func (p *Panic) Error() string {
	return fmt.Sprintf("a defect of Quicksilver: it panicked while it handled what a peer had sent, please report what was logged: %v", p.Value)
}

// Unwrap returns the code of it.
func (p *Panic) Unwrap() error { return ErrIO }

// Panicked counts and logs a panic that has been recovered. The logger is the program's: it runs on a goroutine of its own, because the caller
// may hold locks.
func (h *Host) Panicked(p *Panic) {
	h.panics.Add(1)
	log, id, broken := h.class.cfg.Log(), h.id, h.Broken()
	h.Context().Spawn(func() {
		log.Error("na: a panic while the bytes of a peer were handled: the process goes on, please report it",
			"context", id, "broken", broken, "panic", p.Value, "stack", string(p.Stack))
	})
}

// Break says that the endpoint has ended because of err, which every operation gets, and Progress once nothing is ready.
func (h *Host) Break(err error) {
	if h.broken.CompareAndSwap(nil, &err) {
		h.Context().rouse()
		h.Context().callFollowers(-1)
	}
}

// Broken reports whether Break was called.
func (h *Host) Broken() bool { return h.broken.Load() != nil }

// brokenBy returns why c has ended without Close, or nil.
func (c *Context) brokenBy() error {
	if err := c.broken.Load(); err != nil && c.state.Load() <= ctxDraining {
		return *err
	}
	return nil
}

// recovered deals with a panic in a method of at, with no lock held: it ends what at stands for, and nothing else.
func (c *Context) recovered(v, at any) {
	p := Caught(v)
	if cut, ok := at.(Cutter); ok {
		cut.Cut(p)
	}
	(*Host)(c).Panicked(p)
}
