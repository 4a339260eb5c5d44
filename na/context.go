package na

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/loglimit"
	"github.com/quicksilver-rpc/quicksilver/internal/simhook"
)

// The states of a context.
const (
	ctxOpen     int32 = iota
	ctxDraining       // Drain was called
	ctxClosing        // Close was called
	ctxShut           // the endpoint has been shut; callbacks are still to run
	ctxReleased       // everything has been given back
)

// drained is what live is when no callback will run any more.
const drained = -1 << 62

// settleTime bounds how long Trigger lets others finish with memory that is lent: longer than it takes them, unless the memory
// has to come from a disk first.
const settleTime = 10 * time.Millisecond

// A Context is a completion queue and the progress that fills it. Any number of goroutines may use one: one of them
// leads at a time (Loop), and polls; the others sleep until it hands them the lead, or their time is over.
//
//	Progress: leader ─► poller (sockets, wake-up) ─► endpoint ─► ticket.finish ─► queue
//	Trigger:  queue ─► callback                      Cancel, from anywhere ─► ticket.finish ─► queue
//
// A program needs about fifteen of its methods:
//
//   - progress and callbacks: NewOp, Progress, Trigger, Wake; Timer and Now for what is to happen later
//   - messages: Lookup, Self; SendUnexpected and RecvUnexpected; SendExpected and RecvExpected; Withdraw takes a message back
//   - memory: Put, Get, Deregister; Class.Register and Class.NewMem make it
//   - peers: OnFault, Connected, Disconnect, Identity
//   - the end: Shutdown in good order; Close and Closed at once
//   - settings and gauges: Limits, Stats, Peers, Unconfirmed
//
// The others are for layers above, as package hg, that make calls of messages and wait for them: Call, Answer, AbandonCall,
// CancelIfUnsent, Lease, View and the ...By, ...Long and ...Body forms; room for long messages (ClaimRoom, ReturnRoom, GrantRoom);
// the queue itself (Queue, Queued, Hold, Live, Batch, Cork and the like); who drives (Loop, OnRun, TriggerUntil, UserFrame); and the clock
// and goroutines of a simulator (Until, WallTime, WithTimeout, Spawn). Streams of a call are in packages hg and qs.
//
// One goroutine may drive several contexts, of one class or of several: Progress and Trigger of each in turn. While it waits in
// the Progress of one it drives none of the others, whose timers and callbacks wait; so it waits for a few milliseconds at most, or
// polls with Progress(0). A goroutine for each context waits for none of the others. Bytes of peers are taken in meanwhile where the transport has a background poller
// (on Linux, without Unassisted).
type Context struct {
	class  *Class
	id     int
	ep     *endpoint
	driver simhook.Driver    // the carrier, in a simulator; or nil
	sched  simhook.Scheduler // of a simulator; or nil
	limits Limits

	cq           queue
	behind       atomic.Int64             // tasks that a Trigger runs beside those that were queued when it began
	onMessage    func(data any) (ran int) // nil: messages are received by RecvUnexpected only
	onShut       *Task                    // nil: nothing
	getRecord    func() *Envelope         // nil: the endpoint makes the envelopes of messages
	putRecord    func(*Envelope)
	live         atomic.Int64 // operations started whose callbacks have not returned, and Holds; below zero when c is drained
	lingering    atomic.Int32 // operations that have ended while their memory was lent, and are not queued yet
	slow         atomic.Int32 // how many of them Trigger has waited for without result, until the next is queued
	state        atomic.Int32
	woken        atomic.Bool
	frame        userFrame
	frameNumber  int
	handshakes   atomic.Int64 // of TLS, that have failed: Stats.HandshakesFailed
	handshakeLog loglimit.Limiter
	panics       atomic.Int64          // that were recovered: Stats.Panics
	broken       atomic.Pointer[error] // why the endpoint has ended by itself; nil: it has not

	drivingState
	poller     *poller
	waits      leaderPoller // poller; in a test something else
	corks      atomic.Int32
	background *backgroundPoller

	onAbandon atomic.Pointer[func(e *Envelope)]

	newsMu  sync.Mutex                    // guards the fields below
	onFault []*func(peer Addr, err error) // never changed in place
	faults  int                           // that wait for Trigger
}

func newContext(cls *Class, id int) (*Context, error) {
	c := &Context{class: cls, id: id, limits: cls.domain.limits()}
	c.spinner = newSpinner(cls.cfg.Spin)
	var err error
	if !cls.domain.driven {
		if c.poller, err = newPoller(); err != nil {
			return nil, fmt.Errorf("na: new context: %w", err)
		}
		c.waits = c.poller
		c.poller.panicked = c.onPanic
	}
	if c.poller != nil && !cls.domain.own.Unassisted {
		if c.background, err = newBackgroundPoller(c); err != nil {
			c.closePoller()
			return nil, fmt.Errorf("na: new context: %w", err)
		}
	}
	if c.ep, err = cls.domain.openEndpoint(c); err != nil { // the last that can fail: what it takes, as the listening socket, is kept
		c.background.detach()
		c.closePoller()
		return nil, fmt.Errorf("na: new context: %w", err)
	}
	if cls.domain.driven {
		c.driver = c.ep.routes[0].carrier.(simhook.Driver)
	}
	c.sched = cls.domain.sched
	c.frame, c.frameNumber = takeFrame()
	c.makeLoop()
	c.background.start()
	return c, nil
}

// Class returns the class that made c.
func (c *Context) Class() *Class { return c.class }

// ID is the target id by which peers reach c.
func (c *Context) ID() int { return c.id }

// Self returns the address of c.
func (c *Context) Self() Addr { return c.class.Addr().WithTarget(c.id) }

// Limits tells what c can do.
func (c *Context) Limits() Limits { return c.limits }

// Now reads the clock: monotonic, only differences mean something.
func (c *Context) Now() time.Duration { return c.class.domain.now() }

// Stats returns the gauges and counters.
func (c *Context) Stats() Stats {
	s := c.ep.collectStats()
	s.Regions, s.Panics, s.HandshakesFailed = c.class.Regions(), c.panics.Load(), c.handshakes.Load()
	return s
}

// Live returns how many operations have been started whose callbacks have not returned.
func (c *Context) Live() int64 { return max(c.live.Load(), 0) }

// Closed reports whether everything has been given back after Close.
func (c *Context) Closed() bool { return c.state.Load() == ctxReleased }

// Closing reports whether Close was called.
func (c *Context) Closing() bool { return c.state.Load() >= ctxClosing }

// Draining reports whether Drain or Close was called: layers above begin nothing new.
func (c *Context) Draining() bool { return c.state.Load() != ctxOpen }

// waitForUse waits for operations that have ended, were canceled most likely, while another goroutine used their memory, so
// that a Trigger after a Cancel runs the callback. What it waits for is one copy, or one system call that does not wait. If that
// takes longer all the same, the callback is for the Trigger after its end, and none before waits for it again.
func (c *Context) waitForUse() {
	spinUntil(settleTime, func() bool { return c.lingering.Load() <= c.slow.Load() })
	c.slow.Store(c.lingering.Load())
}

// spinUntil waits, for limit at the most, until other goroutines have done what is not worth sleeping for.
func spinUntil(limit time.Duration, done func() bool) {
	for i := 0; i < 100 && !done(); i++ {
		runtime.Gosched()
	}
	for end := time.Now().Add(limit); !done() && time.Now().Before(end); {
		time.Sleep(10 * time.Microsecond) // they may wait for a processor
	}
}

// Close ends every operation of c with ErrClosed. It does not wait and may be called anywhere; Progress and Trigger
// work until the last callback has run, then Progress returns ErrClosed.
func (c *Context) Close() {
	if c.state.CompareAndSwap(ctxOpen, ctxClosing) || c.state.CompareAndSwap(ctxDraining, ctxClosing) {
		c.ep.shutDown()
		if c.onShut != nil {
			c.Upper().Queue(c.onShut)
		}
		c.state.Store(ctxShut) // not before: who leads may release at once
		c.tryRelease()
	}
}

// queueEnded queues an operation that has ended.
func (c *Context) queueEnded(op *Op) {
	c.cq.push(&op.task)
	c.wakeLeader()
}

func (c *Context) cancelOp(t ticket) {
	if c.state.Load() != ctxReleased {
		c.ep.cancelTicket(t)
	}
}

// callbackReturned counts a callback that has returned.
func (c *Context) callbackReturned() {
	if c.live.Add(-1) == 0 {
		c.tryRelease()
	}
}

func (c *Context) isReleasable() bool {
	return c.state.Load() == ctxShut && c.live.Load() == 0 && !c.ep.isLingering()
}

// tryRelease gives everything back when c is closed and drained, unless somebody leads, who then does.
func (c *Context) tryRelease() {
	if !c.isReleasable() {
		return
	}
	if !c.loop.TryLead() {
		c.wakeLeader()
		return
	}
	if c.isReleasable() {
		c.releaseLocked()
	}
	c.loop.Unlead() // which is tryRelease again, for one who found the lead taken meanwhile
}

// releaseLocked is called with lead held, and reports whether c has been given back. Closed reports true once it is done.
func (c *Context) releaseLocked() bool {
	if c.state.Load() != ctxShut || c.ep.isLingering() || !c.live.CompareAndSwap(0, drained) {
		return c.state.Load() == ctxReleased
	}
	c.background.stop()
	c.ep.release()
	c.closePoller()
	c.class.onContextReleased(c)
	returnFrame(c.frameNumber)
	c.state.Store(ctxReleased)
	if c.driver != nil {
		c.driver.Wake() // who sleeps in Drive sees that c is closed
	}
	return true
}

func (c *Context) closePoller() {
	if c.poller != nil {
		c.poller.close()
	}
}
