package na

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/loop"
)

// Queue queues t, which must not be in the queue, for Trigger, after what is queued now. It reports
// false when c is drained: then t does not run. It does not block, and may be called from any
// goroutine.
func (c upper) Queue(t *Task) bool {
	if !c.Hold() {
		return false
	}
	c.cq.push(t)
	c.wakeLeader()
	return true
}

// Follow is Queue for a task of an operation that has ended: a Trigger that is running runs t too.
func (c upper) Follow(t *Task) {
	if c.Queue(t) {
		c.behind.Add(1)
	}
}

// OnMessage makes Trigger call fn with each unexpected message, so that no RecvUnexpected is
// posted. fn owns the message, and returns how many callbacks of the program it has run. Trigger
// calls shut when c was closed. OnMessage must be called before c is driven.
func (c upper) OnMessage(fn func(e *Envelope) (ran int), shut func()) {
	c.onMessage = func(data any) int { return fn(data.(*Envelope)) }
	c.onShut = &Task{}
	c.onShut.Init(func(any) int { shut(); return 0 }, nil)
}

// Records makes the messages of OnMessage come in Envelopes of the layer above, each a part of its
// record of the message (Envelope.Record). get returns an Envelope that is zero or was freed. Free
// does not return it: its owner decides when to use it again. put returns an Envelope whose message
// was withdrawn or dropped before fn was called. Both are called on any goroutine with endpoint.mu
// held, so they must not call c. Records must be called when OnMessage is.
func (c upper) Records(get func() *Envelope, put func(*Envelope)) {
	c.getRecord, c.putRecord = get, put
}

// maxTaken limits the messages that takeMessages takes at a time.
const maxTaken = 1024

// takeMessages removes messages from the inbox and returns them as tasks.
func (c *Context) takeMessages() (first *Task) {
	if c.onMessage == nil || c.ep.countInbox() == 0 || !c.Upper().Hold() {
		return nil
	}
	n := 0
	at := &first
	for e := c.ep.takeArrived(maxTaken); e != nil; n++ {
		next := e.next
		e.next = nil
		e.task.Init(c.onMessage, e)
		*at, at = &e.task, &e.task.next
		e = next
	}
	*at = nil
	c.cq.n.Add(int64(n))
	c.live.Add(int64(n))
	c.callbackReturned() // ends the Hold above
	return first
}

// Queued returns how many tasks wait for Trigger: operations that have ended, tasks of the layer
// above, and messages. It does not block.
func (c upper) Queued() int {
	n := c.cq.len()
	if c.onMessage != nil {
		n += c.ep.countInbox()
	}
	return n
}

// Arrived reports whether messages wait for Trigger.
func (c upper) Arrived() bool { return c.ep.countInbox() > 0 }

// Settled is Queued after a short wait for ended operations whose memory a transport still uses.
func (c upper) Settled() int {
	if c.lingering.Load() > c.slow.Load() {
		c.waitForUse()
	}
	return c.Queued()
}

// Trigger runs the callbacks that are queued now, at most max of them if max > 0, and returns how
// many ran; steps of the layer above count too. It does not wait for callbacks to be queued. It may
// be called from any goroutine: while a callback runs, other goroutines may run those behind it.
func (c *Context) Trigger(max int) int {
	if c.Upper().Settled() == 0 {
		return 0
	}
	return c.frame(loop.UserCode{Run: runTasks, Data: c, N: max, Step: 1})
}

// A Stopper reports, after each callback, whether TriggerUntil is to return. A loop.Waiter is one.
type Stopper interface{ Stops() bool }

// TriggerUntil is Trigger for the layer above. It counts the callbacks of the program only, not
// steps that run none, and returns after a callback when w, unless it is nil, reports true.
func (c upper) TriggerUntil(w Stopper, max int) int {
	return c.frame(loop.UserCode{Run: runTasks, Data: c.Context, N: max, Stop: w})
}

// runTasks runs tasks of the Context that is k.Data until k.N have been counted, or, if k.N <= 0,
// as many as are queued when it begins. A task that runs no callback counts as k.Step.
func runTasks(k loop.UserCode) (n int) {
	c, max, w := k.Data.(*Context), k.N, k.Stop
	if w == nil { // it is not a goroutine of the loop
		c.loop.Others.Add(1)
		defer c.loop.Others.Add(-1) // deferred: a callback may panic
	}
	var t *Task // removed from the queue and not run yet
	all := max <= 0
	if all {
		if t = c.takeMessages(); t != nil && c.cq.gather() { // behind what is older
			c.cq.putBack(t)
			t = nil
		}
		max = c.cq.len()
	}
	p := pacer{c: c}
	if max >= paceCount && c.corks.Load() > 0 {
		p.last = c.Now()
	}
	for n < max {
		if t == nil {
			if t = c.cq.take(); t == nil {
				if t = c.takeMessages(); t == nil {
					break
				}
			}
		}
		if rest := t.next; rest != nil {
			t.next = nil
			c.cq.putBack(rest) // another goroutine may run it while this one runs a callback
			c.wakeLeader()
		}
		if ran := c.runTask(t); ran > 0 {
			n += ran
			p.onRan()
			if w != nil && w.Stops() {
				break
			}
		} else {
			n += k.Step
		}
		if t = nil; all && c.behind.Load() > 0 {
			max += int(c.behind.Swap(0))
		}
	}
	return n
}

// runTask runs t. It counts the callback as returned also when t panics.
func (c *Context) runTask(t *Task) (ran int) {
	c.cq.n.Add(-1)
	defer c.callbackReturned()
	return t.run(t.data)
}

// A pacer flushes held-back output while Trigger runs many callbacks, so that the peer can start on
// the first frames.
type pacer struct {
	c    *Context
	n    int
	last time.Duration
}

const (
	// paceCount is the number of callbacks between readings of the clock.
	paceCount = 4
	// paceTime limits how long output is held back.
	paceTime = 10 * time.Microsecond
)

// onRan runs after each callback.
func (p *pacer) onRan() {
	if p.n++; p.n%paceCount != 0 || p.c.corks.Load() == 0 {
		return
	}
	if now := p.c.Now(); now-p.last >= paceTime {
		p.last = now
		p.c.Upper().Flush()
	}
}
