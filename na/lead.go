package na

import (
	"errors"
	"os"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/loop"
)

// drivingState is the state used to drive a context, by the goroutine that leads its loop or by the
// background poller.
//
// Poll and callbacks may keep making tasks ready, so that no leader ever sleeps in the poller. A
// leader therefore polls the sockets first if they have not been polled for lookEvery. So does a
// call to Progress that finds something ready.
type drivingState struct {
	loop     *loop.Loop
	progress atomic.Pointer[loop.Waiter] // spare waiter, left by a Progress that has returned
	isReady  func() bool                 // hasReady as a method value, allocated once
	onRun    func()                      // set by OnRun

	watch   atomic.Int32  // state of the background poller, and leaderAsleep
	nudged  atomic.Bool   // a timer was set or a wake-up requested since the leader last polled the endpoint
	passes  atomic.Uint64 // number of times that a goroutine of the program has led
	looked  atomic.Int64  // time of the last poll of all inlets and descriptors
	spinner spinner
}

// lookEvery is the maximum time that a leader with tasks to run goes without polling for arrived
// data.
const lookEvery = 500 * time.Microsecond

// maxRepeats is the maximum number of times that a Progress with timeout 0 polls again because a
// carrier has more to send or something has arrived at an inlet. With shared memory a poll moves
// little bulk data, so that a program that rarely calls Progress would otherwise be slow. Contexts
// without inlets poll once, because the descriptors must be polled before each turn.
const maxRepeats = 7

// isLookDue reports whether the inlets and descriptors have not been polled for lookEvery.
func (c *Context) isLookDue(now time.Duration) bool {
	return now-time.Duration(c.looked.Load()) >= lookEvery
}

// Progress moves bytes until a callback is ready for Trigger or timeout has expired. If timeout is
// negative, there is no limit. If it is zero, Progress does not wait. Progress returns nil if
// something may be ready, which includes a call to Wake. It returns an error that matches
// os.ErrDeadlineExceeded if nothing happened in time, and one that matches ErrClosed if c is closed
// and drained.
//
// Progress runs no callbacks and may be called from any goroutine. While a callback is queued it
// returns immediately, so a loop that only calls Progress spins until another goroutine calls
// Trigger.
func (c *Context) Progress(timeout time.Duration) error {
	err := c.progressFor(timeout)
	if err == nil && !c.Upper().HasQueued() {
		c.woken.Store(false)
	}
	return err
}

func (c *Context) progressFor(timeout time.Duration) error {
	c.Upper().Flush()
	if c.hasReady() {
		if c.driver == nil && c.isLookDue(c.Now()) {
			c.tryPoll()
		}
		return nil
	}
	if c.driver != nil {
		return c.pollDriver(timeout, (*progressWait)(c))
	}
	w := c.drivingState.progress.Swap(nil)
	if w == nil {
		w = c.loop.NewPoller(c.isReady)
	}
	err := w.PollFor(timeout)
	c.drivingState.progress.Store(w)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return c.idleError()
	}
	return err
}

// makeLoop creates the context's loop.
func (c *Context) makeLoop() {
	mode := loop.Lend
	if !c.Upper().Batches() {
		mode = loop.Each
	}
	c.loop, c.isReady = loop.New((*loopDriver)(c), mode), c.hasReady
}

// Loop returns the event loop of c, for use by the layer above.
func (c upper) Loop() *loop.Loop { return c.loop }

// OnRun sets a function that the leader of the loop calls before it runs callbacks. The layer above
// must call OnRun before c is driven.
func (c upper) OnRun(f func()) { c.onRun = f }

// progressWait adapts a Context to pollWaiter, for Progress in a simulator.
type progressWait Context

func (p *progressWait) Stirred() bool { return (*Context)(p).hasReady() }
func (p *progressWait) WillSleep()    {}

// A pollWaiter represents the condition that a polling goroutine waits for.
type pollWaiter interface {
	// Stirred reports whether the goroutine must stop polling. It must be fast and must not panic.
	Stirred() bool
	// WillSleep is called before the goroutine sleeps until it is woken.
	WillSleep()
}

// loopDriver adapts a Context to loop.Driver.
type loopDriver Context

func (d *loopDriver) Poll(w *loop.Waiter, now, until time.Duration) (read time.Duration, err error) {
	return (*Context)(d).poll(w, now, until)
}
func (d *loopDriver) Queued() int        { return (*Context)(d).Upper().Queued() }
func (d *loopDriver) Stir()              { (*Context)(d).wakeLeader() }
func (d *loopDriver) Now() time.Duration { return (*Context)(d).Now() }
func (d *loopDriver) Hold() bool         { return (*Context)(d).Upper().Cork() }
func (d *loopDriver) Unhold()            { (*Context)(d).Upper().Uncork() }
func (d *loopDriver) Flush()             { (*Context)(d).Upper().Flush() }
func (d *loopDriver) Freed()             { (*Context)(d).tryRelease() }

func (d *loopDriver) Run(w *loop.Waiter, max int) int {
	c := (*Context)(d)
	if c.onRun != nil {
		c.onRun()
	}
	if c.Upper().Settled() == 0 {
		return 0
	}
	return c.Upper().TriggerUntil(w, max)
}

// poll moves bytes until w.Stirred returns true or the clock reaches until (loop.Never for no
// limit). The calling goroutine must hold the lead. now and read are as in loop.Driver.
func (c *Context) poll(w pollWaiter, now, until time.Duration) (read time.Duration, err error) {
	c.Upper().Flush()
	if c.driver != nil {
		return -1, c.pollScheduled(w, until)
	}
	if w.Stirred() {
		if now = c.Now(); !c.isLookDue(now) {
			return now, nil
		}
	}
	return c.drive(w, now, until)
}

// pollScheduled implements poll in a simulator.
func (c *Context) pollScheduled(w pollWaiter, until time.Duration) error {
	if w.Stirred() {
		return nil
	}
	timeout := time.Duration(-1)
	if until != loop.Never {
		timeout = max(until-c.Now(), 0)
	}
	return c.pollDriver(timeout, w)
}

// pollDriver implements drive in a simulator.
func (c *Context) pollDriver(timeout time.Duration, w pollWaiter) error {
	if c.state.Load() == ctxReleased {
		return ErrClosed
	}
	if !c.Scheduled() {
		w.WillSleep()
	}
	if c.driver.Drive(timeout, w.Stirred) {
		return nil
	}
	c.tryRelease()
	return c.idleError()
}

// drive polls the endpoint and the descriptors, spins or sleeps between polls, and returns when
// something is ready. now and read are as in loop.Driver. now is negative if the clock was not just
// read.
func (c *Context) drive(w pollWaiter, now, until time.Duration) (read time.Duration, err error) {
	c.passes.Add(1)
	if c.state.Load() == ctxReleased {
		return -1, ErrClosed
	}
	looked, came := false, false
	repeats := 0 // number of polls that may follow although until has passed
	way, begun := asleep, time.Duration(-1)
	for {
		if now < 0 {
			now = c.Now()
		}
		if begun >= 0 {
			c.spinner.learn(way, now-begun, came)
			begun = -1
		}
		if !looked && now >= until && len(c.poller.inlets) > 0 {
			repeats = maxRepeats
		}
		if c.isLookDue(now) || !looked && now >= until {
			c.pollAll(now)
		}
		if c.nudged.Load() {
			c.nudged.Store(false)
		}
		next := c.ep.Poll(now)
		more := next != 0 && next <= now // a carrier has more to do at once, which delays what has arrived
		if (more || repeats > 0) && c.pollInlets() {
			more = true
		}
		switch {
		case w.Stirred():
			return now, nil
		case c.isReleasable() && c.releaseLocked():
			return -1, ErrClosed
		case c.brokenBy() != nil:
			return -1, c.brokenBy()
		case now >= until && (!more || repeats == 0):
			return now, ErrTimeout
		}
		if looked = true; now >= until {
			repeats--
			continue
		}
		wait := time.Duration(-1)
		if until != loop.Never {
			wait = max(until-now, 0)
		}
		if next != 0 && (wait < 0 || next-now < wait) {
			wait = max(next-now, 0)
		}
		if wait == 0 { // timers have expired
			c.pollAll(now)
			now = -1
			continue
		}
		way, begun, came = c.spinner.choose(now), now, false
		if way == awake {
			begun -= c.spinner.vain
			switch end, how := c.spin(now, wait, w); how {
			case spinCame:
				if came = true; w.Stirred() { // the duration is not needed
					c.spinner.learn(awake, 0, true)
					return -1, nil
				}
				now = -1
				continue
			case spinDue:
				begun, now = -1, -1
				continue
			case spinVain:
				if wait >= 0 {
					wait = max(wait-(end-now), 0)
				}
				now = end
			case spinNone:
				way, begun = asleep, now
			}
		}
		w.WillSleep()
		now, came = c.sleep(now, wait, w)
	}
}

// sleep waits in the poller unless there is already work to do. It cannot miss a wake-up. A
// goroutine that queues a completion or sets a timer after leaderAsleep has been set sees the bit
// and wakes the leader. If it did so earlier, the checks here see the completion or the timer.
// Similarly, data at an inlet either wakes the leader or is found by arm. sleep returns the time at
// which it ended and whether anything arrived.
func (c *Context) sleep(now, wait time.Duration, w pollWaiter) (end time.Duration, came bool) {
	c.watch.Or(leaderAsleep)
	c.background.leaderSleeps()
	n, slept := 0, false
	if !w.Stirred() && !c.nudged.Load() && !c.isReleasable() && c.brokenBy() == nil && !c.poller.arm() {
		n, slept = c.waits.sleep(wait), true
	}
	c.watch.And(^leaderAsleep) // cleared before dispatch, because tasks that the leader itself queues need no wake-up
	c.waits.dispatch(n)
	came = c.pollInlets() || n > 0
	end = c.Now()
	if slept { // otherwise the descriptors have not been polled
		c.looked.Store(int64(end))
	}
	c.background.leaderWakes(end-now, len(c.poller.inlets) > 0)
	return end, came
}

// isAsleep reports whether a leader is asleep in the poller, or about to be.
func (c *Context) isAsleep() bool { return c.watch.Load()&leaderAsleep != 0 }

// idleError returns the error for a Progress that has nothing to report: ErrTimeout, or the reason
// why c cannot be driven.
func (c *Context) idleError() error {
	if c.state.Load() == ctxReleased {
		return ErrClosed
	}
	if err := c.brokenBy(); err != nil {
		return err
	}
	return ErrTimeout
}

// hasReady reports whether a callback is ready for Trigger, or Wake has been called.
func (c *Context) hasReady() bool { return c.woken.Load() || c.Upper().HasQueued() }

// HasQueued reports whether a callback is ready for Trigger.
func (c upper) HasQueued() bool {
	return c.cq.len() > 0 || c.onMessage != nil && c.ep.countInbox() > 0
}

// wakeLeader wakes the leader, if it is asleep, so that it checks whether something is ready.
func (c *Context) wakeLeader() {
	if c.driver != nil {
		c.driver.Wake()
	}
	if c.isAsleep() {
		c.waits.wake()
	}
}
