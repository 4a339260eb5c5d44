package sim

import (
	"fmt"
	"iter"
	"runtime"
	"runtime/debug"
	"time"
)

// A coState is a coroutine's state.
type coState uint8

const (
	coRunnable coState = iota // in World.runnable
	coRunning
	coWaiting // in Progress or Sleep
	coStalled // ready, but delayed by a stall
	coFrozen  // runnable, but its node is paused
	coDone
)

// A coroutine is a part of the program that the world schedules. Only one coroutine runs at a time,
// and it runs until it waits.
type coroutine struct {
	w        *World
	node     *Node
	name     string
	id       uint64
	state    coState
	hasBegun bool // whether it has ever run
	next     func() (struct{}, bool)
	stop     func()
	yield    func(struct{}) bool

	port     *port // port whose events it is waiting for; nil in Sleep
	ready    func() bool
	timeout  event // ends the wait or a stall
	timedOut bool  // whether timeout has fired
	result   bool  // result of the wait
	deadline time.Duration
	isKilled bool // it ends at its next wait

	goroutine string // number of its goroutine; set only with Config.CheckGoroutines

	panicked any
	stack    []byte
}

// Go adds a coroutine that runs f on the named node. Between two waits in Progress or Sleep, the
// coroutine has exclusive use of the world. It must not wait for another coroutine in any other
// way, such as on a channel or on a mutex that the other coroutine holds while it waits.
func (w *World) Go(name string, f func()) { w.Node(name).Go(f) }

// Go adds a coroutine that runs f on n. See [World.Go].
func (n *Node) Go(f func()) {
	w := n.w
	w.takeTurn()
	defer w.releaseTurn()
	n.started++
	name := n.name
	if n.started > 1 {
		name = fmt.Sprintf("%s/%d", n.name, n.started)
	}
	w.created++
	c := &coroutine{w: w, node: n, name: name, id: w.created}
	c.timeout = event{actor: c, isTimer: true}
	c.next, c.stop = iter.Pull(func(yield func(struct{}) bool) {
		if c.yield = yield; w.cfg.CheckGoroutines {
			c.goroutine = goroutineNumber()
		}
		defer func() {
			if r := recover(); r != nil {
				c.panicked, c.stack = r, debug.Stack()
			}
		}()
		c.runBody(f)
	})
	w.coroutines = append(w.coroutines, c)
	w.enqueue(c)
}

// yieldUntil implements Progress and Sleep for a coroutine. It yields to the world until ready
// reports true, p is released, or the timeout expires.
func (c *coroutine) yieldUntil(p *port, timeout time.Duration, ready func() bool) bool {
	c.checkGoroutine()
	c.port, c.ready, c.deadline = p, ready, c.w.deadlineAfter(timeout)
	if !c.yield(struct{}{}) { // the coroutine is being unwound
		runtime.Goexit()
	}
	return c.result
}

// waitForEvent makes c wait until its condition is true or its wait times out. If the condition is
// already true, c becomes runnable at once.
func (c *coroutine) waitForEvent() {
	c.state = coWaiting
	if c.deadline != noDeadline {
		c.w.events.schedule(&c.timeout, c.deadline)
	}
	p := c.port
	if p == nil {
		return
	}
	if p.isWaitInVain(c.deadline) {
		c.endWait()
		return
	}
	if c.ready() {
		c.w.makeReady(c)
		return
	}
	p.waiting = append(p.waiting, c)
}

// wakeReady makes the coroutines that wait at p and whose conditions are true runnable, and ends
// waits that can never be satisfied.
func (w *World) wakeReady(p *port) {
	kept := p.waiting[:0]
	for _, c := range p.waiting {
		switch {
		case p.isWaitInVain(c.deadline):
			c.endWait()
		case c.ready():
			w.makeReady(c)
		default:
			kept = append(kept, c)
		}
	}
	clear(p.waiting[len(kept):])
	p.waiting = kept
}

// makeReady makes c, whose condition is true, runnable. If Faults.Stall is set, c becomes runnable
// only after a random delay.
func (w *World) makeReady(c *coroutine) {
	w.events.cancel(&c.timeout)
	w.addTrace("ready", c.name, c.id, 0)
	if w.faults.Stall > 0 {
		c.state = coStalled
		w.events.schedule(&c.timeout, w.timeAfter(w.faultRNG.expDuration(w.faults.Stall)))
		return
	}
	w.enqueue(c)
}

func (w *World) enqueue(c *coroutine) {
	c.state = coRunnable
	w.runnable = append(w.runnable, c)
}

// endWait makes c runnable, with its wait timed out.
func (c *coroutine) endWait() {
	c.timedOut = true
	c.w.events.cancel(&c.timeout)
	c.w.enqueue(c)
}

// fire handles the timeout of c's wait, or the end of c's stall.
func (c *coroutine) fire(*event) {
	if c.state == coStalled {
		c.w.enqueue(c)
		return
	}
	c.w.addTrace("timeout", c.name, c.id, 0)
	if p := c.port; p != nil {
		p.waiting = removeElement(p.waiting, c)
	}
	c.endWait()
}

// Kill kills the coroutines with the given name. They never resume.
func (w *World) Kill(name string) {
	w.takeTurn()
	defer w.releaseTurn()
	for _, c := range w.coroutines {
		if c.name == name {
			w.killCoroutine(c)
		}
	}
}

// killCoroutine marks c as killed. It is unwound by Run or, if it is running now, at its next wait.
func (w *World) killCoroutine(c *coroutine) {
	if c.isKilled || c.state == coDone {
		return
	}
	c.isKilled = true
	w.events.cancel(&c.timeout)
	if c.state == coWaiting && c.port != nil {
		c.port.waiting = removeElement(c.port.waiting, c)
	}
	w.runnable = removeElement(w.runnable, c)
	w.killed = append(w.killed, c)
}

// unwindCoroutine ends a killed coroutine and runs its deferred calls. It resumes the coroutine on
// a separate goroutine, because the Goexit that ends the coroutine also ends the goroutine that
// resumed it.
func (w *World) unwindCoroutine(c *coroutine) {
	if c.state == coDone {
		return
	}
	w.current = c
	w.releaseTurn()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.stop()
	}()
	<-done
	w.takeTurn()
	w.current = nil
}

// removeCoroutine removes c, which has returned. If c panicked, removeCoroutine panics.
func (w *World) removeCoroutine(c *coroutine) {
	if c.state == coDone {
		return
	}
	c.state = coDone
	w.events.cancel(&c.timeout)
	w.coroutines = removeElement(w.coroutines, c)
	w.addTrace("end", c.name, c.id, 0)
	if c.panicked != nil {
		w.hasPanicked = true
		panic(fmt.Sprintf("sim: seed %d: coroutine %s at %v: %v\n\n%s", w.cfg.Seed, c.name, w.Now(), c.panicked, c.stack))
	}
}
