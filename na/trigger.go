package na

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/loop"
)

// Queue queues t to be run by Trigger after all tasks queued so far. t must not already be queued.
// Queue returns false if c has run its last callback, in which case t does not run. Queue does not
// block and is safe for concurrent use.
func (c upper) Queue(t *Task) bool {
	if !c.Hold() {
		return false
	}
	c.cq.push(t)
	c.wakeLeader()
	return true
}

// Follow is like Queue, for a task that follows the completion of an operation. A call to Trigger
// that is already in progress also runs t.
func (c upper) Follow(t *Task) {
	if c.Queue(t) {
		c.behind.Add(1)
	}
}

// OnMessage makes Trigger call fn with each unexpected message, so that no RecvUnexpected need be
// posted. fn owns the message and returns the number of user callbacks it has run. Trigger calls
// shut after c has been closed. OnMessage must be called before c is driven.
func (c upper) OnMessage(fn func(e *Envelope) (ran int), shut func()) {
	c.onMessage = func(data any) int { return fn(data.(*Envelope)) }
	c.onShut = &Task{}
	c.onShut.Init(func(any) int { shut(); return 0 }, nil)
}

// Records makes the messages of OnMessage arrive in Envelopes provided by the higher layer, each of
// them part of that layer's record of the message (Envelope.Record). get returns an Envelope that
// is zero or has been freed. Free does not return it to put; its owner decides when to reuse it.
// put accepts an Envelope whose message was withdrawn or dropped before fn was called. Both may be
// called on any goroutine with endpoint.mu held, so they must not call methods of c. Records must
// be called along with OnMessage.
func (c upper) Records(get func() *Envelope, put func(*Envelope)) {
	c.getRecord, c.putRecord = get, put
}

// maxTaken limits the number of messages that takeMessages removes at a time.
const maxTaken = 1024

// takeMessages removes up to maxTaken messages from the inbox and returns a list of tasks that pass
// them to the function set by OnMessage. It returns nil if there are none.
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
	c.callbackReturned() // releases the Hold above
	return first
}

// Queued returns the number of tasks waiting for Trigger: completed operations, tasks of the higher
// layer, and messages. It does not block.
func (c upper) Queued() int {
	n := c.cq.len()
	if c.onMessage != nil {
		n += c.ep.countInbox()
	}
	return n
}

// Arrived reports whether messages are waiting for Trigger. It does not block.
func (c upper) Arrived() bool { return c.ep.countInbox() > 0 }

// Settled is like Queued, but it first waits briefly for operations that have been canceled while a
// transport was using their memory, so that their callbacks are included.
func (c upper) Settled() int {
	if c.lingering.Load() > c.slow.Load() {
		c.waitForUse()
	}
	return c.Queued()
}

// Trigger runs the callbacks that are currently queued, or no more than max of them if max > 0. It
// returns the number of callbacks that it ran, including steps of the higher layer. It does not
// wait for callbacks to be queued. It is safe for concurrent use: while one goroutine runs a
// callback, others may run the callbacks queued after it.
func (c *Context) Trigger(max int) int {
	if c.Upper().Settled() == 0 {
		return 0
	}
	return c.frame(loop.UserCode{Run: runTasks, Data: c, N: max, Step: 1})
}

// A Stopper reports, after each callback, whether TriggerUntil should return. loop.Waiter
// implements it.
type Stopper interface{ Stops() bool }

// TriggerUntil is like Trigger, but it counts only user callbacks and no other tasks of the higher
// layer. If w is not nil, TriggerUntil calls w.Stops after each callback and returns once the
// result is true.
func (c upper) TriggerUntil(w Stopper, max int) int {
	return c.frame(loop.UserCode{Run: runTasks, Data: c.Context, N: max, Stop: w})
}

// runTasks runs tasks of the Context in k.Data until k.N have been counted or, if k.N <= 0, as many
// as are queued when it begins. A task that runs no callback counts as k.Step.
func runTasks(k loop.UserCode) (n int) {
	c, max, w := k.Data.(*Context), k.N, k.Stop
	if w == nil { // not a goroutine of the loop
		c.loop.Others.Add(1)
		defer c.loop.Others.Add(-1) // deferred because a callback may panic
	}
	var t *Task // removed from the queue and not yet run
	all := max <= 0
	if all {
		if t = c.takeMessages(); t != nil && c.cq.gather() { // behind older tasks
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

// runTask runs t and returns the number of callbacks that ran. It counts t as completed even if t
// panics.
func (c *Context) runTask(t *Task) (ran int) {
	c.cq.n.Add(-1)
	defer c.callbackReturned()
	return t.run(t.data)
}

// A pacer flushes the output that corks hold back while Trigger runs many callbacks, so that the
// peer can process the first frames in the meantime.
type pacer struct {
	c    *Context
	n    int
	last time.Duration
}

const (
	// paceCount is the number of callbacks between readings of the clock.
	paceCount = 4
	// paceTime is the time after which output that corks hold back is flushed.
	paceTime = 10 * time.Microsecond
)

// onRan flushes the output if paceTime has elapsed since the last flush. It must be called after
// each callback.
func (p *pacer) onRan() {
	if p.n++; p.n%paceCount != 0 || p.c.corks.Load() == 0 {
		return
	}
	if now := p.c.Now(); now-p.last >= paceTime {
		p.last = now
		p.c.Upper().Flush()
	}
}
