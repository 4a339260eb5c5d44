package sim

import (
	"errors"
	"fmt"
	"iter"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

// Why Run gave up.
var (
	// ErrDeadlock: every coroutine waits without limit and nothing is under way.
	ErrDeadlock = errors.New("deadlock")
	// ErrLimit: coroutines are left when the virtual time of Run is over.
	ErrLimit = errors.New("time limit")
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
	next  func() (struct{}, bool)
	stop  func()
	yield func(struct{}) bool

	port    *port // where it waits; nil in Sleep
	ready   func() bool
	timeout event // the end of the wait, or of a stall
	late    bool  // the wait is over
	ok      bool  // what the wait returns
	limit   time.Duration
	doomed  bool // killed: it ends at its next wait

	panicked any
	stack    []byte
}

// sched is the part of a World that runs coroutines.
type sched struct {
	cur      *coroutine
	running  bool // in Run
	all      []*coroutine
	runnable []*coroutine
	dooms    []*coroutine // killed and not yet unwound
	made     uint64
	live     int
}

// Go adds a coroutine that runs f on the node called name. Between two waits in Progress or Sleep it has the world for
// itself. It must not wait for another coroutine in any other way: not on a channel and not on a mutex that the other
// keeps while it waits.
func (w *World) Go(name string, f func()) { w.Node(name).Go(f) }

// Go adds a coroutine that runs f on n.
func (n *Node) Go(f func()) {
	w := n.w
	w.take()
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
		f()
	})
	w.live++
	w.all = append(w.all, c)
	n.cos = append(n.cos, c)
	w.enqueue(c)
}

// Run runs coroutines and lets the network and the clock go on until every coroutine has returned. It gives up with
// ErrLimit after limit of virtual time, if that is not zero, and with ErrDeadlock when nothing can happen any more; the
// error tells who waits. A panic in a coroutine becomes one of Run, with the seed in it.
func (w *World) Run(limit time.Duration) error {
	w.take()
	if w.running {
		w.give()
		panic("sim: Run is called inside Run")
	}
	w.running = true
	mine := true // the turn
	defer func() {
		if !mine { // a coroutine has ended this goroutine, as FailNow of package testing does
			w.take()
			if c := w.cur; c != nil {
				w.cur = nil
				w.over(c)
			}
		}
		w.running = false
		w.give()
	}()
	end := forever
	if limit > 0 {
		end = w.deadline(limit)
	}
	for {
		w.settle()
		for len(w.dooms) > 0 {
			c := w.dooms[0]
			w.dooms = w.dooms[1:]
			mine = false
			w.unwind(c)
			mine = true
			w.over(c)
		}
		if c := w.pick(); c != nil {
			mine = false
			more := w.resume(c)
			mine = true
			w.yielded(c, more)
			continue
		}
		if w.live == 0 {
			return nil
		}
		ev := w.events.min()
		switch {
		case ev == nil:
			return w.stuck(ErrDeadlock)
		case ev.at > end:
			w.now.Store(int64(end))
			return w.stuck(ErrLimit)
		}
		w.step(end)
	}
}

// pick takes one of the runnable coroutines, drawn by the seed.
func (w *World) pick() *coroutine {
	for len(w.runnable) > 0 {
		i := w.order.below(len(w.runnable))
		last := len(w.runnable) - 1
		c := w.runnable[i]
		w.runnable[i] = w.runnable[last]
		w.runnable[last] = nil
		w.runnable = w.runnable[:last]
		switch {
		case c.node.paused:
			c.state = coFrozen
		case c.ready != nil && !c.late && !c.ready(): // another one has taken what was there
			c.listen()
		default:
			return c
		}
	}
	return nil
}

// resume lets c run until it waits again, and reports false when it has returned. The turn is given up meanwhile.
func (w *World) resume(c *coroutine) bool {
	c.state = coRunning
	c.ok = c.ready != nil && c.ready()
	c.ready, c.port = nil, nil
	w.stats.Resumes++
	w.trace(traceResume, c.name, c.id, 0)
	w.cur = c
	w.give()
	_, more := c.next()
	w.take()
	w.cur = nil
	return more
}

// yielded takes note of what a coroutine waits for, or that it has returned.
func (w *World) yielded(c *coroutine, more bool) {
	if !more {
		w.over(c)
		return
	}
	if c.doomed {
		return
	}
	c.late = false
	c.listen()
	if p := c.port; p != nil && w.cfg.NoAssist {
		p.serve()
	}
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
	if p.gone.Load() {
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
		case p.gone.Load():
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
	w.trace(traceReady, c.name, c.id, 0)
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
	c.w.trace(traceTimeout, c.name, c.id, 0)
	if p := c.port; p != nil {
		p.unlist(c)
	}
	c.finish()
}

// unlist takes c out of those who wait.
func (p *port) unlist(c *coroutine) {
	for i, o := range p.cos {
		if o == c {
			p.cos = append(p.cos[:i], p.cos[i+1:]...)
			return
		}
	}
}

// wait is Progress or Sleep inside a coroutine: it yields to the world.
func (c *coroutine) wait(p *port, timeout time.Duration, ready func() bool) bool {
	c.port, c.ready, c.limit = p, ready, c.w.deadline(timeout)
	if !c.yield(struct{}{}) { // it was doomed, and Run unwinds it
		runtime.Goexit()
	}
	return c.ok
}

// over forgets a coroutine that has ended.
func (w *World) over(c *coroutine) {
	if c.state == coDone {
		return
	}
	c.state = coDone
	w.events.unset(&c.timeout)
	w.live--
	for i, o := range w.all {
		if o == c {
			w.all = append(w.all[:i], w.all[i+1:]...)
			break
		}
	}
	for i, o := range c.node.cos {
		if o == c {
			c.node.cos = append(c.node.cos[:i], c.node.cos[i+1:]...)
			break
		}
	}
	w.trace(traceEnd, c.name, c.id, 0)
	if c.panicked != nil {
		panic(fmt.Sprintf("sim: seed %d: coroutine %s at %v: %v\n\n%s", w.cfg.Seed, c.name, w.Now(), c.panicked, c.stack))
	}
}

// Kill ends the coroutines of that name: they never resume.
func (w *World) Kill(name string) {
	w.take()
	defer w.give()
	for _, c := range w.all {
		if c.name == name {
			w.doom(c)
		}
	}
}

// doom has c end. Run unwinds it, or its next wait does if it runs now.
func (w *World) doom(c *coroutine) {
	if c.doomed || c.state == coDone {
		return
	}
	c.doomed = true
	w.events.unset(&c.timeout)
	if c.state == coWaiting && c.port != nil {
		c.port.unlist(c)
	}
	for i, o := range w.runnable {
		if o == c {
			w.runnable = append(w.runnable[:i], w.runnable[i+1:]...)
			break
		}
	}
	w.dooms = append(w.dooms, c)
}

// unwind ends a doomed coroutine: its deferred calls run. Goexit passes on to whoever unwinds it: that is a goroutine
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
	w.take()
	w.cur = nil
}

// Close ends every coroutine that is left. The world can be looked at afterwards.
func (w *World) Close() {
	w.take()
	defer w.give()
	for len(w.all) > 0 {
		c := w.all[0]
		w.doom(c)
		w.unwind(c)
		w.over(c)
	}
	w.dooms = nil
}

// Sleep lets virtual time pass.
func (w *World) Sleep(d time.Duration) {
	if c := w.cur; c != nil {
		c.wait(nil, max(d, 0), nil)
		return
	}
	w.drive(nil, max(d, 0), nil)
}

// stuck is the error of a Run that gives up.
func (w *World) stuck(why error) error {
	var who []string
	for _, c := range w.all {
		text := c.name
		switch c.state {
		case coFrozen:
			text += " (paused)"
		case coWaiting:
			switch {
			case c.port == nil:
				text += fmt.Sprintf(" (sleeps until %v)", c.limit)
			case c.limit == forever:
				text += fmt.Sprintf(" (in Progress on %v)", c.port.e.Context().Self())
			default:
				text += fmt.Sprintf(" (in Progress on %v until %v)", c.port.e.Context().Self(), c.limit)
			}
		}
		who = append(who, text)
	}
	return fmt.Errorf("sim: seed %d: %w at %v: %d coroutines are left: %s", w.cfg.Seed, why, w.Now(), len(who), strings.Join(who, ", "))
}
