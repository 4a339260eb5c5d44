package sim

import (
	"fmt"
	"iter"
	"runtime"
	"runtime/debug"
	"time"
)

// The states of a coroutine.
type coState uint8

const (
	coRunnable coState = iota // in runnable
	coRunning
	coWaiting // in Progress or Sleep
	coStalled // ready, but held up
	coFrozen  // runnable, but its node is paused
	coDone
)

// A coroutine is a part of the program that runs by itself between two waits. One runs at a time.
type coroutine struct {
	w     *World
	node  *Node
	name  string
	id    uint64
	state coState
	begun bool // it has run
	next  func() (struct{}, bool)
	stop  func()
	yield func(struct{}) bool

	port    *port // where it waits; nil in Sleep
	ready   func() bool
	timeout event // the end of the wait, or of a stall
	late    bool  // the wait is over
	ok      bool  // what the wait returns
	limit   time.Duration
	dying   bool // killed: it ends at its next wait

	panicked any
	stack    []byte
}

// Go adds a coroutine that runs f on the node called name. Between two waits in Progress or Sleep it has the world for
// itself. It must not wait for another coroutine in any other way: not on a channel and not on a mutex that the other
// keeps while it waits.
func (w *World) Go(name string, f func()) { w.Node(name).Go(f) }

// Go adds a coroutine that runs f on n.
func (n *Node) Go(f func()) {
	w := n.w
	w.takeTurn()
	defer w.give()
	n.made++
	name := n.name
	if n.made > 1 {
		name = fmt.Sprintf("%s/%d", n.name, n.made)
	}
	w.made++
	c := &coroutine{w: w, node: n, name: name, id: w.made}
	c.timeout = event{act: c, slow: true}
	c.next, c.stop = iter.Pull(func(yield func(struct{}) bool) {
		c.yield = yield
		defer func() {
			if r := recover(); r != nil {
				c.panicked, c.stack = r, debug.Stack()
			}
		}()
		c.body(f)
	})
	w.all = append(w.all, c)
	w.enqueue(c)
}

// wait is Progress or Sleep inside a coroutine: it yields to the world.
func (c *coroutine) wait(p *port, timeout time.Duration, ready func() bool) bool {
	c.port, c.ready, c.limit = p, ready, c.w.deadline(timeout)
	if !c.yield(struct{}{}) { // it was dying, and Run unwinds it
		runtime.Goexit()
	}
	return c.ok
}

// listen has c told when its port is woken or its time is up, and looks at once.
func (c *coroutine) listen() {
	c.state = coWaiting
	if c.limit != forever {
		c.w.events.set(&c.timeout, c.limit)
	}
	p := c.port
	if p == nil {
		return
	}
	if p.over(c.limit) {
		c.finish()
		return
	}
	if c.ready() {
		c.w.readied(c)
		return
	}
	p.cos = append(p.cos, c)
}

// wakeCoroutines looks at those who wait at a port.
func (w *World) wakeCoroutines(p *port) {
	kept := p.cos[:0]
	for _, c := range p.cos {
		switch {
		case p.over(c.limit):
			c.finish()
		case c.ready():
			w.readied(c)
		default:
			kept = append(kept, c)
		}
	}
	clear(p.cos[len(kept):])
	p.cos = kept
}

// readied lets a coroutine resume whose wait has come true.
func (w *World) readied(c *coroutine) {
	w.events.unset(&c.timeout)
	w.trace("ready", c.name, c.id, 0)
	if w.faults.Stall > 0 {
		c.state = coStalled
		w.events.set(&c.timeout, w.after(w.chance.exp(w.faults.Stall)))
		return
	}
	w.enqueue(c)
}

func (w *World) enqueue(c *coroutine) {
	c.state = coRunnable
	w.runnable = append(w.runnable, c)
}

// finish ends the wait of c whatever it waited for.
func (c *coroutine) finish() {
	c.late = true
	c.w.events.unset(&c.timeout)
	c.w.enqueue(c)
}

// fire is the end of a wait or of a stall.
func (c *coroutine) fire(*event) {
	if c.state == coStalled {
		c.w.enqueue(c)
		return
	}
	c.w.trace("timeout", c.name, c.id, 0)
	if p := c.port; p != nil {
		p.cos = without(p.cos, c)
	}
	c.finish()
}

// Kill ends the coroutines of that name: they never resume.
func (w *World) Kill(name string) {
	w.takeTurn()
	defer w.give()
	for _, c := range w.all {
		if c.name == name {
			w.kill(c)
		}
	}
}

// kill has c end. Run unwinds it, or its next wait does if it runs now.
func (w *World) kill(c *coroutine) {
	if c.dying || c.state == coDone {
		return
	}
	c.dying = true
	w.events.unset(&c.timeout)
	if c.state == coWaiting && c.port != nil {
		c.port.cos = without(c.port.cos, c)
	}
	w.runnable = without(w.runnable, c)
	w.killed = append(w.killed, c)
}

// unwind ends a dying coroutine: its deferred calls run. Goexit passes on to whoever unwinds it: that is a goroutine
// for this alone.
func (w *World) unwind(c *coroutine) {
	if c.state == coDone {
		return
	}
	w.cur = c
	w.give()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.stop()
	}()
	<-done
	w.takeTurn()
	w.cur = nil
}

// over forgets a coroutine that has ended.
func (w *World) over(c *coroutine) {
	if c.state == coDone {
		return
	}
	c.state = coDone
	w.events.unset(&c.timeout)
	w.all = without(w.all, c)
	w.trace("end", c.name, c.id, 0)
	if c.panicked != nil {
		w.broken = true
		panic(fmt.Sprintf("sim: seed %d: coroutine %s at %v: %v\n\n%s", w.cfg.Seed, c.name, w.Now(), c.panicked, c.stack))
	}
}
