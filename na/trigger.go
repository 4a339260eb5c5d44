package na

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/loop"
)

// Queue queues t, which is not in the queue, to run in Trigger after what is queued now. It may be
// called from any goroutine. It reports false when c has been drained: t will not run.
func (c upper) Queue(t *Task) bool {
	if !c.Hold() {
		return false
	}
	c.cq.push(t)
	c.wakeLeader()
	return true
}

// Follow is Queue of what belongs to something that has ended: a Trigger that runs that runs this
// too.
func (c upper) Follow(t *Task) {
	if c.Queue(t) {
		c.behind.Add(1)
	}
}

// OnMessage has Trigger call fn with each unexpected message that comes, and nobody post a
// RecvUnexpected. fn owns the message, and returns how many callbacks of the program it has run.
// shut is called, in Trigger, when c has been closed. OnMessage is called before anybody drives c.
func (c upper) OnMessage(fn func(e *Envelope) (ran int), shut func()) {
	c.onMessage = func(data any) int { return fn(data.(*Envelope)) }
	c.onShut = &Task{}
	c.onShut.Init(func(any) int { shut(); return 0 }, nil)
}

// Records has the messages of OnMessage come in Envelopes of the layer above, each part of its own
// record of the message, which Envelope.Record names. get returns one that is zero, or was freed;
// Free does not give it back, so its owner decides when it is used again. put takes back one whose
// message is withdrawn, or dropped, before anybody was given it. Both are called on any goroutine,
// with the lock of the endpoint held: they call nothing of c. Records is called when OnMessage is.
func (c upper) Records(get func() *Envelope, put func(*Envelope)) {
	c.getRecord, c.putRecord = get, put
}

// maxTaken is how many messages are taken at a time.
const maxTaken = 1024

// takeMessages returns the messages that have come, as tasks.
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
	c.callbackReturned() // the Hold
	return first
}

// Queued returns how much waits for Trigger: operations that have ended, what a layer above has
// queued, messages that have come.
func (c upper) Queued() int {
	n := c.cq.len()
	if c.onMessage != nil {
		n += c.ep.countInbox()
	}
	return n
}

// Arrived reports whether messages have come that Trigger has not taken.
func (c upper) Arrived() bool { return c.ep.countInbox() > 0 }

// Settled is Queued that waits a moment for operations that have ended and whose memory is lent.
func (c upper) Settled() int {
	if c.lingering.Load() > c.slow.Load() {
		c.waitForUse()
	}
	return c.Queued()
}

// Trigger runs the callbacks that are queued now, at most max of them if max > 0, and returns how
// many ran. Steps of the layer above count, too. While a callback runs other goroutines may run
// those behind it.
func (c *Context) Trigger(max int) int {
	if c.Upper().Settled() == 0 {
		return 0
	}
	return c.frame(loop.UserCode{Run: runTasks, Data: c, N: max, Step: 1})
}

// A Stopper says, after each callback, whether TriggerUntil is to end: a loop.Waiter.
type Stopper interface{ Stops() bool }

// TriggerUntil is Trigger for the layer above: it counts the callbacks of the program, and not the
// steps that run none, and ends after one when w, if it is not nil, says so.
func (c upper) TriggerUntil(w Stopper, max int) int {
	return c.frame(loop.UserCode{Run: runTasks, Data: c.Context, N: max, Stop: w})
}

// runTasks runs tasks of the Context that is k.Data until k.N have been counted, or, if k.N <= 0, as
// many as are queued when it begins. A task that runs no callback counts as k.Step.
func runTasks(k loop.UserCode) (n int) {
	c, max, w := k.Data.(*Context), k.N, k.Stop
	var t *Task // taken, and not run
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
			c.cq.putBack(rest) // another goroutine may go on with it while this one is in the program's code
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

// runTask runs t; a panic in it leaves the context as it should be.
func (c *Context) runTask(t *Task) (ran int) {
	c.cq.n.Add(-1)
	defer c.callbackReturned()
	return t.run(t.data)
}

// A pacer sends what the callbacks of a Trigger have sent before it grows old, so that the peer has
// something to do while the others run.
type pacer struct {
	c    *Context
	n    int
	last time.Duration
}

const (
	// paceCount callbacks are run before the clock is read.
	paceCount = 4
	// paceTime is how old what is held back may grow.
	paceTime = 10 * time.Microsecond
)

func (p *pacer) onRan() {
	if p.n++; p.n%paceCount != 0 || p.c.corks.Load() == 0 {
		return
	}
	if now := p.c.Now(); now-p.last >= paceTime {
		p.last = now
		p.c.Upper().Flush()
	}
}
