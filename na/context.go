package na

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// The states of a context.
const (
	ctxOpen     int32 = iota
	ctxDraining       // Drain was called
	ctxClosing        // Close was called
	ctxShut           // the endpoint has been shut; callbacks are still to run
	ctxReleased       // everything has been given back
)

// settleTime bounds how long Trigger lets others finish with memory that is lent: far longer than it takes them.
const settleTime = time.Second

// A Context is a completion queue and the progress that fills it. Any number of goroutines may use one: one of them
// leads Progress at a time, the others return as soon as something is queued.
//
//	Progress: leader ─► poller (sockets, wake-up) ─► endpoint ─► Ticket.Finish ─► queue
//	Trigger:  queue ─► callback                      Cancel, from anywhere ─► Ticket.Finish ─► queue
type Context struct {
	class  *Class
	id     int
	ep     Endpoint
	driver Driver  // ep, if it waits in its own way
	waker  Waker   // ep, if it has to be woken then
	corker Corker  // ep, if it can hold frames back
	drains Drainer // ep, if it can end in good order
	limits Limits
	isRdy  func() bool
	above  atomic.Pointer[func() bool] // more that Trigger of a layer above has to run

	cq        queue
	live      atomic.Int64 // operations started whose callbacks have not returned
	lingering atomic.Int32 // operations that have ended while their memory was lent, and are not queued yet
	state     atomic.Int32
	woken     atomic.Bool

	lead     sync.Mutex // held by the goroutine that leads Progress
	sleeping atomic.Bool
	nudged   atomic.Bool   // since the leader last looked at the timers
	passes   atomic.Uint64 // times that a user's goroutine led
	poller   *Poller
	spinner  spinner
	corks    atomic.Int32
	assist   *assist

	followMu  sync.Mutex // guards the fields below
	follow    chan struct{}
	following atomic.Int32

	newsMu    sync.Mutex                    // guards the fields below
	onFault   []*func(peer Addr, err error) // never changed in place
	onAbandon func(peer Addr, tag Tag)
	faults    int // that wait for Trigger
	abandoned int // likewise
}

func newContext(cls *Class, id int) (*Context, error) {
	c := &Context{class: cls, id: id, limits: cls.domain.Limits(), follow: make(chan struct{})}
	c.isRdy = c.ready
	c.spinner = newSpinner(cls.cfg.Spin)
	var err error
	if d, ok := cls.domain.(DrivenDomain); !ok || !d.Driven() {
		if c.poller, err = newPoller(); err != nil {
			return nil, fmt.Errorf("na: new context: %w", err)
		}
	}
	if d, ok := cls.domain.(UnassistedDomain); c.poller != nil && !(ok && d.Unassisted()) {
		if c.assist, err = newAssist(c); err != nil {
			c.closePoller()
			return nil, fmt.Errorf("na: new context: %w", err)
		}
	}
	if c.ep, err = cls.domain.Endpoint(c); err != nil { // the last that can fail: what it takes, as the listening socket, is kept
		c.assist.drop()
		c.closePoller()
		return nil, fmt.Errorf("na: new context: %w", err)
	}
	c.corker, _ = c.ep.(Corker)
	c.drains, _ = c.ep.(Drainer)
	if d, ok := c.ep.(Driver); ok {
		c.driver = d
		c.waker, _ = c.ep.(Waker)
	}
	c.assist.start()
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
func (c *Context) Now() time.Duration { return c.class.domain.Now() }

// Poller returns the poller, for the plugin; nil if the domain is a DrivenDomain.
func (c *Context) Poller() *Poller { return c.poller }

// Stats returns the gauges and counters.
func (c *Context) Stats() Stats {
	s := c.ep.Stats()
	s.Regions = c.class.Regions()
	return s
}

// Live returns how many operations have been started whose callbacks have not returned.
func (c *Context) Live() int64 { return c.live.Load() }

// Queued returns how many callbacks wait for Trigger.
func (c *Context) Queued() int { return int(c.cq.len()) }

// Closed tells whether everything has been given back after Close.
func (c *Context) Closed() bool { return c.state.Load() == ctxReleased }

// Closing tells whether Close was called.
func (c *Context) Closing() bool { return c.state.Load() >= ctxClosing }

// Draining tells whether Drain or Close was called: layers above begin nothing new.
func (c *Context) Draining() bool { return c.state.Load() != ctxOpen }

// Progress moves bytes until a callback is ready for Trigger, or timeout has passed. A negative timeout has no limit,
// zero polls once. It returns nil when something may be ready (a Wake counts), an error that matches
// os.ErrDeadlineExceeded when nothing happened in time, and one that matches ErrClosed when c is closed and drained.
func (c *Context) Progress(timeout time.Duration) error { return c.ProgressUntil(timeout, nil) }

// ProgressUntil is Progress that returns nil, too, when done reports true. Several goroutines may wait so, each for a
// condition of its own: whoever makes one true calls Rouse afterwards. done may be nil; it must be quick, take no lock
// that is held around a call of this package, and be safe to call at any time meanwhile.
func (c *Context) ProgressUntil(timeout time.Duration, done func() bool) error {
	c.Flush()
	if c.takeReady(done) {
		return nil
	}
	if c.state.Load() == ctxReleased {
		return ErrClosed
	}
	if c.driver != nil {
		ready := c.isRdy
		if done != nil {
			ready = func() bool { return done() || c.ready() }
		}
		if c.driver.Drive(timeout, ready) {
			if done == nil || !done() {
				c.woken.Store(false)
			}
			return nil
		}
		c.tryRelease()
		return c.idle()
	}
	deadline := time.Duration(-1)
	if timeout >= 0 {
		deadline = c.Now() + timeout
	}
	for {
		if c.lead.TryLock() {
			err := c.drive(deadline, done)
			c.unlead()
			return err
		}
		if err, over := c.followUntil(deadline, done); over {
			return err
		}
	}
}

// drive leads: one look at the sockets, then sleeps in the poller until something is ready.
func (c *Context) drive(deadline time.Duration, done func() bool) error {
	c.passes.Add(1)
	if c.state.Load() == ctxReleased {
		return ErrClosed
	}
	looked := deadline >= 0 && c.Now() >= deadline
	if looked {
		c.poller.wait(0)
	}
	way, begun := asleep, time.Duration(-1)
	for {
		now := c.Now()
		if begun >= 0 {
			c.spinner.learn(way, now-begun)
		}
		c.nudged.Store(false)
		c.ep.Poll(now)
		switch {
		case c.takeReady(done):
			return nil
		case c.releasable():
			c.release()
			return ErrClosed
		case looked && deadline >= 0 && now >= deadline:
			return ErrTimeout
		}
		looked = true
		wait := time.Duration(-1)
		if deadline >= 0 {
			wait = max(deadline-now, 0)
		}
		if at, ok := c.ep.NextTimer(); ok && (wait < 0 || at-now < wait) {
			wait = max(at-now, 0)
		}
		way, begun = c.spinner.choose(), now
		if way == asleep || !c.spin(now, wait, done) {
			c.sleep(now, wait, done)
		}
	}
}

// sleep waits in the poller. Who queues a completion meanwhile, or sets a timer, sees sleeping and wakes it; one who did so
// before is seen here.
func (c *Context) sleep(now, wait time.Duration, done func() bool) {
	c.assist.leaderSleeps()
	c.sleeping.Store(true)
	n := 0
	if !c.ready() && !c.nudged.Load() && !c.releasable() && (done == nil || !done()) {
		n = c.poller.sleep(wait)
	}
	c.sleeping.Store(false) // before anything is delivered here: what the leader queues wakes nobody
	c.poller.dispatch(n)
	c.assist.leaderWakes(c.Now() - now)
}

// unlead gives leadership up; a follower takes over.
func (c *Context) unlead() {
	c.lead.Unlock()
	c.callFollowers()
	c.tryRelease()
}

// followUntil waits while another goroutine leads. over is false when leadership may be free.
func (c *Context) followUntil(deadline time.Duration, done func() bool) (err error, over bool) {
	c.followMu.Lock()
	ch := c.follow
	c.following.Add(1)
	c.followMu.Unlock()
	defer c.following.Add(-1)
	if c.takeReady(done) {
		return nil, true
	}
	if c.lead.TryLock() { // it became free before we were listed
		err := c.drive(deadline, done)
		c.unlead()
		return err, true
	}
	var expired <-chan time.Time
	if deadline >= 0 {
		left := deadline - c.Now()
		if left <= 0 {
			return c.idle(), true
		}
		timer := time.NewTimer(left)
		defer timer.Stop()
		expired = timer.C
	}
	select {
	case <-ch:
		return nil, c.takeReady(done)
	case <-expired:
		return c.idle(), true
	}
}

func (c *Context) callFollowers() {
	if c.following.Load() == 0 {
		return
	}
	c.followMu.Lock()
	close(c.follow)
	c.follow = make(chan struct{})
	c.followMu.Unlock()
}

// idle is the error of a Progress in which nothing happened.
func (c *Context) idle() error {
	if c.state.Load() == ctxReleased {
		return ErrClosed
	}
	return ErrTimeout
}

// Trigger runs the callbacks that are queued now, at most max of them if max > 0, and returns how many ran.
func (c *Context) Trigger(max int) int {
	if c.lingering.Load() > 0 {
		c.settle()
	}
	if queued := int(c.cq.len()); max <= 0 || max > queued {
		max = queued
	}
	n := 0
	for ; n < max; n++ {
		op := c.cq.pop()
		if op == nil {
			break
		}
		c.end(op)
	}
	return n
}

// end runs the callback of an operation that has ended; a panic in it leaves the context as it should be.
func (c *Context) end(op *Op) {
	defer c.left()
	r := op.take()
	op.done(op, r)
}

// settle waits for operations that have ended, were canceled most likely, while another goroutine used their memory, so
// that a Trigger after a Cancel runs the callback. What it waits for is one copy, or one system call that does not wait.
func (c *Context) settle() {
	settle(settleTime, func() bool { return c.lingering.Load() == 0 })
}

// settle waits, for limit at the most, until other goroutines have done what is not worth sleeping for.
func settle(limit time.Duration, done func() bool) {
	for i := 0; i < 100 && !done(); i++ {
		runtime.Gosched()
	}
	for end := time.Now().Add(limit); !done() && time.Now().Before(end); {
		time.Sleep(10 * time.Microsecond) // they may wait for a processor
	}
}

// Wake makes one Progress that sleeps now, or else the next one, return nil. Where several goroutines wait, each for
// something of its own, ProgressUntil and Rouse are what is wanted: the Wake may be another's.
func (c *Context) Wake() {
	c.woken.Store(true)
	c.rouse()
}

// Above lets a layer above say that its own Trigger has something to run: Progress returns nil then. That layer calls
// Rouse after it has queued something.
func (c *Context) Above(ready func() bool) { c.above.Store(&ready) }

// Rouse makes those who sleep in Progress look again whether something is ready.
func (c *Context) Rouse() { c.rouse() }

// rouse wakes the leader and its followers, if they sleep.
func (c *Context) rouse() {
	if c.waker != nil {
		c.waker.Wake()
	}
	if c.sleeping.Load() {
		c.poller.wake()
	}
	c.callFollowers()
}

// Nudge makes a leader that sleeps, or is about to, look at the timers again. Plugins call it.
func (c *Context) Nudge() {
	if c.waker != nil {
		c.waker.Wake()
	}
	c.nudged.Store(true)
	if c.sleeping.Load() {
		c.poller.wake()
	}
}

// Close ends every operation of c with ErrClosed. It does not wait and may be called anywhere; Progress and Trigger
// work until the last callback has run, then Progress returns ErrClosed.
func (c *Context) Close() {
	if c.state.CompareAndSwap(ctxOpen, ctxClosing) || c.state.CompareAndSwap(ctxDraining, ctxClosing) {
		c.ep.Shut()
		c.state.Store(ctxShut) // not before: who leads may release at once
		c.tryRelease()
	}
}

// ready tells whether Trigger has something to run, or somebody called Wake.
func (c *Context) ready() bool { return c.woken.Load() || c.queued() }

// queued tells whether a Trigger, here or above, has something to run.
func (c *Context) queued() bool {
	if c.cq.len() > 0 {
		return true
	}
	above := c.above.Load()
	return above != nil && (*above)()
}

// takeReady is ready, or done; it uses up a Wake if nothing else is.
func (c *Context) takeReady(done func() bool) bool {
	if done != nil && done() || c.queued() {
		return true
	}
	return c.woken.Load() && c.woken.Swap(false)
}

// deliver queues an operation that has ended.
func (c *Context) deliver(op *Op) {
	c.cq.push(op)
	c.rouse()
}

func (c *Context) cancel(t Ticket) {
	if c.state.Load() != ctxReleased {
		c.ep.Cancel(t)
	}
}

// left counts a callback that has returned.
func (c *Context) left() {
	if c.live.Add(-1) == 0 {
		c.tryRelease()
	}
}

func (c *Context) releasable() bool {
	return c.state.Load() == ctxShut && c.live.Load() == 0
}

// tryRelease gives everything back when c is closed and drained, unless somebody leads, who then does.
func (c *Context) tryRelease() {
	if !c.releasable() {
		return
	}
	if !c.lead.TryLock() {
		c.rouse()
		return
	}
	if c.releasable() {
		c.release()
	}
	c.lead.Unlock()
	c.callFollowers()
	c.tryRelease() // for one who found the lead taken meanwhile
}

// release is called with lead held. Closed reports true once it is done.
func (c *Context) release() {
	if c.state.Load() != ctxShut {
		return
	}
	c.assist.stop()
	c.ep.Release()
	c.closePoller()
	c.class.released()
	c.state.Store(ctxReleased)
	if c.waker != nil {
		c.waker.Wake() // who sleeps in Drive sees that c is closed
	}
}

func (c *Context) closePoller() {
	if c.poller != nil {
		c.poller.close()
	}
}
