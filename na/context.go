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
	ctxReleased       // all resources have been released
)

// drained is the value of Context.live when no callback will run any more.
const drained = -1 << 62

// settleTime limits how long Trigger waits for other goroutines to finish with lent memory. They
// need less, unless the memory has to be read from a disk first.
const settleTime = 10 * time.Millisecond

// A Context is a completion queue and the progress that fills it. It is safe for concurrent use:
// one goroutine at a time leads (Loop) and polls; the others sleep until it hands over the lead, or
// until their timeout.
//
//	Progress: leader ─► poller (sockets, wake-up) ─► endpoint ─► ticket.finish ─► queue
//	Trigger:  queue ─► callback                      Cancel, from anywhere ─► ticket.finish ─► queue
//
// A program needs about fifteen of its methods:
//
//   - progress and callbacks: NewOp, Progress, Trigger, Wake; Timer and Now
//   - messages: Lookup, Self; SendUnexpected and RecvUnexpected; SendExpected and RecvExpected; Withdraw
//   - memory: Put, Get, Deregister; Class.Register and Class.NewMem make it
//   - peers: OnFault, Connected, Disconnect, Identity
//   - the end: Shutdown, which lets operations end; Close and Closed, which do not
//   - settings and gauges: Limits, Stats, Peers
//
// Upper has those for layers above, such as package hg, that make calls out of messages and wait
// for them. Until, WithTimeout and Spawn are the clock and goroutines of a simulator. Streams of a
// call are in packages hg and qs.
//
// One goroutine may drive several contexts, of one class or of several, by calling Progress and
// Trigger of each in turn. While it waits in one Progress, the timers and callbacks of the other
// contexts wait too; so it should wait for a few milliseconds at most, or poll with Progress(0).
// Alternatively each context gets a goroutine of its own. Bytes of peers are received in the
// meantime if the transport has a background poller (on Linux, without Unassisted).
type Context struct {
	class  *Class
	id     int
	ep     *endpoint
	driver simhook.Driver    // in a simulator: the carrier; or nil
	sched  simhook.Scheduler // in a simulator; or nil
	limits Limits

	cq queue
	// tasks to run in this Trigger beyond those that were queued when it began
	behind    atomic.Int64
	onMessage func(data any) (ran int) // nil: messages are received by RecvUnexpected only
	onShut    *Task                    // queued by Close; or nil
	getRecord func() *Envelope         // nil: the endpoint makes the envelopes of messages
	putRecord func(*Envelope)
	// operations whose callbacks have not returned, plus Holds; drained when c is released
	live      atomic.Int64
	lingering atomic.Int32 // operations that have ended while their memory was lent, and are not queued yet
	// the value of lingering when the last waitForUse timed out; 0 again when one is queued
	slow         atomic.Int32
	state        atomic.Int32
	woken        atomic.Bool
	frame        userFrame
	frameNumber  int
	handshakes   atomic.Int64 // Stats.HandshakesFailed
	handshakeLog loglimit.Limiter
	panics       atomic.Int64          // Stats.Panics
	broken       atomic.Pointer[error] // the error that the endpoint has ended with by itself; nil: it has not

	drivingState
	poller     *poller
	waits      leaderPoller // the poller, or a fake of a test
	corks      atomic.Int32
	background *backgroundPoller

	onAbandon atomic.Pointer[func(e *Envelope)]

	newsMu  sync.Mutex                    // guards the fields below
	onFault []*func(peer Addr, err error) // never changed in place
	faults  int                           // calls of onFault that wait for Trigger
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
	// nothing after it fails, because its sockets would not be closed
	if c.ep, err = cls.domain.openEndpoint(c); err != nil {
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

// ID returns the target ID by which peers reach c.
func (c *Context) ID() int { return c.id }

// Self returns the address of c.
func (c *Context) Self() Addr { return c.class.Addr().WithTarget(c.id) }

// Limits returns the limits of c.
func (c *Context) Limits() Limits { return c.limits }

// Now returns the time of the clock. It is monotonic, and only differences are meaningful.
func (c *Context) Now() time.Duration { return c.class.domain.now() }

// Stats returns the gauges and counters.
func (c *Context) Stats() Stats {
	s := c.ep.collectStats()
	s.Regions, s.Panics, s.HandshakesFailed = c.class.Regions(), c.panics.Load(), c.handshakes.Load()
	return s
}

// Live returns the number of operations whose callbacks have not returned.
func (c *Context) Live() int64 { return max(c.live.Load(), 0) }

// Closed reports whether Close is complete: the last callback has returned, and all resources are
// released.
func (c *Context) Closed() bool { return c.state.Load() == ctxReleased }

// Closing reports whether Close was called.
func (c *Context) Closing() bool { return c.state.Load() >= ctxClosing }

// Draining reports whether Drain or Close was called: layers above must not start anything new.
func (c *Context) Draining() bool { return c.state.Load() != ctxOpen }

// waitForUse waits for operations that have ended, mostly by a cancel, while another goroutine used
// their memory, so that the Trigger after a Cancel runs the callback. That goroutine is in one
// copy, or in one nonblocking system call. If it takes longer than settleTime, a later Trigger runs
// the callback, and those until then do not wait again.
func (c *Context) waitForUse() {
	spinUntil(settleTime, func() bool { return c.lingering.Load() <= c.slow.Load() })
	c.slow.Store(c.lingering.Load())
}

// spinUntil waits until done returns true, for at most limit. It yields to other goroutines at
// first, which is faster than sleeping for short waits.
func spinUntil(limit time.Duration, done func() bool) {
	for i := 0; i < 100 && !done(); i++ {
		runtime.Gosched()
	}
	for end := time.Now().Add(limit); !done() && time.Now().Before(end); {
		time.Sleep(10 * time.Microsecond) // the other goroutine may wait for a CPU
	}
}

// Close ends every operation of c with ErrClosed. It does not block, and may be called from
// anywhere. Progress and Trigger work until the last callback has run; then Progress returns
// ErrClosed.
func (c *Context) Close() {
	if c.state.CompareAndSwap(ctxOpen, ctxClosing) || c.state.CompareAndSwap(ctxDraining, ctxClosing) {
		c.ep.shutDown()
		if c.onShut != nil {
			c.Upper().Queue(c.onShut)
		}
		c.state.Store(ctxShut) // last, because a leader may release c at once
		c.tryRelease()
	}
}

// queueEnded queues an operation that has ended.
func (c *Context) queueEnded(op *Op) {
	c.cq.push(&op.task)
	c.wakeLeader()
}

// cancelOpLocked cancels the operation of t.
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

// isReleasable reports whether c is closed, every callback has returned, and no carrier waits for
// its last packets.
func (c *Context) isReleasable() bool {
	return c.state.Load() == ctxShut && c.live.Load() == 0 && !c.ep.isLingering()
}

// tryRelease releases c if it is releasable. If another goroutine leads, it wakes that one, which
// does it when it gives up the lead.
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
	c.loop.Unlead() // it calls tryRelease again, for a goroutine that could not get the lead in the meantime
}

// releaseLocked releases c if it is releasable, and reports whether c is released. The caller holds
// the lead.
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
		c.driver.Wake() // a goroutine that sleeps in Drive sees that c is closed
	}
	return true
}

func (c *Context) closePoller() {
	if c.poller != nil {
		c.poller.close()
	}
}
