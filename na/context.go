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

// States of a context.
const (
	ctxOpen     int32 = iota
	ctxDraining       // Drain has been called
	ctxClosing        // Close has been called
	ctxShut           // the endpoint has been shut down, but callbacks have yet to run
	ctxReleased       // all resources have been released
)

// drained is the value of Context.live once no further callback will run.
const drained = -1 << 62

// settleTime limits how long Trigger waits for other goroutines to stop using lent memory. They
// usually need less, unless the memory must first be read from disk.
const settleTime = 10 * time.Millisecond

// A Context has a queue of completed operations, and moves the bytes that complete them. It is
// safe for concurrent use. One goroutine at a time leads (see Loop) and polls. The others sleep
// until the leader hands over the lead or their timeout expires.
//
// Progress polls the sockets and queues each operation that has completed. Trigger removes
// operations from the queue and runs their callbacks. Op.Cancel, which may be called by any
// goroutine, queues an operation that has not completed.
//
// Most programs need only these methods:
//
//   - progress and callbacks: NewOp, Progress, Trigger, Wake; Timer and Now
//   - messages: Lookup, Self; SendUnexpected and RecvUnexpected; SendExpected and RecvExpected;
//     Withdraw
//   - memory: Put, Get, Deregister; memory is created by Class.Register and Class.NewMem
//   - peers: OnFault, Connected, Disconnect, Identity
//   - closing: Shutdown, which lets operations complete; Close and Closed, which do not
//   - settings and gauges: Limits, Stats, Peers
//
// Upper returns the methods for higher layers, such as package hg, that build calls from messages
// and wait for them. Until, WithTimeout and Spawn provide the clock and the goroutines of a
// simulator. Streams of a call are provided by packages hg and qs.
//
// A single goroutine may drive several contexts, of one or more classes, by calling Progress and
// Trigger of each in turn. While it waits in one context's Progress, the timers and callbacks of
// the other contexts are delayed. It should therefore wait for at most a few milliseconds, or poll
// with Progress(0). Alternatively, each context can be driven by its own goroutine. In both cases,
// if the transport has a background poller (on Linux, without Unassisted), bytes from peers are
// received while a context is not being driven.
type Context struct {
	class  *Class
	id     int
	ep     *endpoint
	driver simhook.Driver    // the carrier, if it is a simulator's; otherwise nil
	sched  simhook.Scheduler // scheduler of the simulator, or nil if there is none
	limits Limits

	cq queue
	// number of tasks to run in the current Trigger in addition to those queued when it began
	behind    atomic.Int64
	onMessage func(data any) (ran int) // if nil, messages are received only by RecvUnexpected
	onShut    *Task                    // queued by Close if not nil
	getRecord func() *Envelope         // if nil, the endpoint allocates the envelopes of messages
	putRecord func(*Envelope)
	// number of operations whose callbacks have not returned, plus Holds; drained once c is
	// released
	live      atomic.Int64
	lingering atomic.Int32 // number of completed operations not yet queued because their memory was still lent
	// value of lingering when the last waitForUse timed out; reset to 0 when one is queued
	slow         atomic.Int32
	state        atomic.Int32
	woken        atomic.Bool
	frame        userFrame
	frameNumber  int
	handshakes   atomic.Int64 // Stats.HandshakesFailed
	handshakeLog loglimit.Limiter
	panics       atomic.Int64          // Stats.Panics
	broken       atomic.Pointer[error] // error with which the endpoint has terminated on its own, or nil

	drivingState
	poller     *poller
	waits      leaderPoller // the poller, or a fake in a test
	corks      atomic.Int32
	background *backgroundPoller

	onAbandon atomic.Pointer[func(e *Envelope)]

	newsMu  sync.Mutex                    // guards the fields below
	onFault []*func(peer Addr, err error) // copied on write
	faults  int                           // number of calls of onFault that are waiting for Trigger
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
	// Nothing after this may fail, because its sockets would not be closed.
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

// Class returns the class that created c.
func (c *Context) Class() *Class { return c.class }

// ID returns the target id under which peers reach c.
func (c *Context) ID() int { return c.id }

// Self returns the address of c.
func (c *Context) Self() Addr { return c.class.Addr().WithTarget(c.id) }

// Limits returns the limits that apply to c.
func (c *Context) Limits() Limits { return c.limits }

// Now returns the current time of the class's clock. The clock is monotonic, and only differences
// between its values are meaningful.
func (c *Context) Now() time.Duration { return c.class.domain.now() }

// Stats returns the context's gauges and counters.
func (c *Context) Stats() Stats {
	s := c.ep.collectStats()
	s.Regions, s.Panics, s.HandshakesFailed = c.class.Regions(), c.panics.Load(), c.handshakes.Load()
	return s
}

// Live returns the number of operations whose callbacks have not returned.
func (c *Context) Live() int64 { return max(c.live.Load(), 0) }

// Closed reports whether Close is complete, that is, the last callback has returned and all
// resources have been released.
func (c *Context) Closed() bool { return c.state.Load() == ctxReleased }

// Closing reports whether Close has been called.
func (c *Context) Closing() bool { return c.state.Load() >= ctxClosing }

// Draining reports whether Drain or Close has been called. Higher layers must not start anything
// new once it returns true.
func (c *Context) Draining() bool { return c.state.Load() != ctxOpen }

// waitForUse waits until other goroutines have stopped using the memory of operations that have
// completed, usually by cancellation. It ensures that the Trigger after a Cancel runs the
// callback. The wait is short, because each of those goroutines is in a single copy or a single
// nonblocking system call. If one takes longer than settleTime, a later Trigger runs the callback,
// and calls to Trigger before that do not wait again.
func (c *Context) waitForUse() {
	spinUntil(settleTime, func() bool { return c.lingering.Load() <= c.slow.Load() })
	c.slow.Store(c.lingering.Load())
}

// spinUntil waits until done returns true, but no longer than limit. It first yields to other
// goroutines, which is faster than sleeping if the wait is short.
func spinUntil(limit time.Duration, done func() bool) {
	for i := 0; i < 100 && !done(); i++ {
		runtime.Gosched()
	}
	for end := time.Now().Add(limit); !done() && time.Now().Before(end); {
		time.Sleep(10 * time.Microsecond) // the other goroutine may be waiting for a CPU
	}
}

// Close completes every operation of c with ErrClosed. It does not block and may be called from any
// goroutine or callback. Progress and Trigger continue to work until the last callback has run,
// after which Progress returns ErrClosed.
func (c *Context) Close() {
	if c.state.CompareAndSwap(ctxOpen, ctxClosing) || c.state.CompareAndSwap(ctxDraining, ctxClosing) {
		c.ep.shutDown()
		if c.onShut != nil {
			c.Upper().Queue(c.onShut)
		}
		c.state.Store(ctxShut) // last, because a leader may then release c immediately
		c.tryRelease()
	}
}

// queueEnded queues the callback of a completed operation.
func (c *Context) queueEnded(op *Op) {
	c.cq.push(&op.task)
	c.wakeLeader()
}

// cancelOp cancels the operation to which t refers.
func (c *Context) cancelOp(t ticket) {
	if c.state.Load() != ctxReleased {
		c.ep.cancelTicket(t)
	}
}

// callbackReturned records that a callback has returned.
func (c *Context) callbackReturned() {
	if c.live.Add(-1) == 0 {
		c.tryRelease()
	}
}

// isReleasable reports whether c is closed, every callback has returned, and no carrier is waiting
// for its last packets to be acknowledged.
func (c *Context) isReleasable() bool {
	return c.state.Load() == ctxShut && c.live.Load() == 0 && !c.ep.isLingering()
}

// tryRelease releases c if it is releasable. If another goroutine leads, tryRelease wakes that
// goroutine, which releases c when it gives up the lead.
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
	c.loop.Unlead() // calls tryRelease again, for a goroutine that could not get the lead in the meantime
}

// releaseLocked releases c if it is releasable and reports whether c is released. The caller must
// hold the lead.
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
		c.driver.Wake() // wake any goroutine sleeping in Drive, so that it sees that c is closed
	}
	return true
}

func (c *Context) closePoller() {
	if c.poller != nil {
		c.poller.close()
	}
}
