package na

import (
	"errors"
	"os"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/loop"
)

// drivingState is how a context is driven: by the goroutine that leads its loop, or the background poller.
//
// What Poll ends, and what callbacks queue, may be ready again and again before any leader sleeps. So a leader looks at the
// sockets first whenever nobody has done so for lookEvery, and a Progress that finds something ready looks then, too.
type drivingState struct {
	loop     *loop.Loop
	progress atomic.Pointer[loop.Waiter] // of a Progress that has returned
	isReady  func() bool                 // ready, bound once
	onRun    func()                      // of OnRun

	watch   atomic.Int32  // who takes in what arrives: what the background poller does, and leaderAsleep
	nudged  atomic.Bool   // since the leader last looked at the timers
	passes  atomic.Uint64 // times that a user's goroutine led
	looked  atomic.Int64  // when a leader last looked at every source and descriptor
	spinner spinner
}

// lookEvery is how long what has arrived waits for a leader who has other things to do.
const lookEvery = 500 * time.Microsecond

// isLookDue reports whether nobody has looked at the inlets and descriptors for lookEvery.
func (c *Context) isLookDue(now time.Duration) bool {
	return now-time.Duration(c.looked.Load()) >= lookEvery
}

// Progress moves bytes until a callback is ready for Trigger, or timeout has passed. A negative timeout has no limit,
// zero polls once. It returns nil when something may be ready (a Wake counts), an error that matches
// os.ErrDeadlineExceeded when nothing happened in time, and one that matches ErrClosed when c is closed and drained.
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
		return c.nothingHappened()
	}
	return err
}

// makeLoop makes the loop of a context.
func (c *Context) makeLoop() {
	mode := loop.Lend
	if !c.Upper().Batches() {
		mode = loop.Each
	}
	c.loop, c.isReady = loop.New((*loopDriver)(c), mode), c.hasReady
}

// Loop returns the loop of those who wait for c, for the layer above.
func (c upper) Loop() *loop.Loop { return c.loop }

// OnRun has the leader of the loop call f before callbacks run. It is for the layer above, and called before anybody drives c.
func (c upper) OnRun(f func()) { c.onRun = f }

// progressWait is a Context as what Progress waits for in a simulator.
type progressWait Context

func (p *progressWait) Stirred() bool { return (*Context)(p).hasReady() }
func (p *progressWait) WillSleep()    {}

// A pollWaiter is what a goroutine that polls waits for.
type pollWaiter interface {
	// Stirred reports whether it is to return. It is quick and does not panic.
	Stirred() bool
	// WillSleep is called before it sleeps where only a wake-up ends that.
	WillSleep()
}

// loopDriver is a Context as its loop drives it.
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

// poll moves bytes until w.Stirred reports true, or the clock reads until (loop.Never: no limit). The goroutine leads. now and read are as
// those of loop.Driver.
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

// pollScheduled is poll in a simulator.
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

// pollDriver is drive in a simulator.
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
	return c.nothingHappened()
}

// drive polls until something is ready: it Polls the endpoint, and waits. now, which is negative if the clock has not just been read, and
// read are as those of loop.Driver.
func (c *Context) drive(w pollWaiter, now, until time.Duration) (read time.Duration, err error) {
	c.passes.Add(1)
	if c.state.Load() == ctxReleased {
		return -1, ErrClosed
	}
	looked, came := false, false
	way, begun := asleep, time.Duration(-1)
	for {
		if now < 0 {
			now = c.Now()
		}
		if begun >= 0 {
			c.spinner.learn(way, now-begun, came)
			begun = -1
		}
		if c.isLookDue(now) || !looked && now >= until {
			c.pollAll(now)
		}
		if c.nudged.Load() {
			c.nudged.Store(false)
		}
		next := c.ep.Poll(now)
		switch {
		case w.Stirred():
			return now, nil
		case c.isReleasable() && c.releaseLocked():
			return -1, ErrClosed
		case c.brokenBy() != nil:
			return -1, c.brokenBy()
		case now >= until:
			return now, ErrTimeout
		}
		looked = true
		wait := time.Duration(-1)
		if until != loop.Never {
			wait = max(until-now, 0)
		}
		if next != 0 && (wait < 0 || next-now < wait) {
			wait = max(next-now, 0)
		}
		if wait == 0 { // there is more to do
			c.pollAll(now)
			now = -1
			continue
		}
		way, begun, came = c.spinner.choose(now), now, false
		if way == awake {
			begun -= c.spinner.vain
			switch end, how := c.spin(now, wait, w); how {
			case spinCame:
				if came = true; w.Stirred() { // how long it took nobody needs to know
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

// sleep waits in the poller. A goroutine that queues a completion meanwhile, or sets a timer, sees that it sleeps and wakes it; one who did so
// before is seen here. Work at an inlet rings, or was there when the bells were armed. It returns the time at its end, and whether
// anything came, or only the time.
func (c *Context) sleep(now, wait time.Duration, w pollWaiter) (end time.Duration, came bool) {
	c.watch.Or(leaderAsleep)
	c.background.leaderSleeps()
	n := 0
	if !w.Stirred() && !c.nudged.Load() && !c.isReleasable() && c.brokenBy() == nil && !c.poller.arm() {
		n = c.waits.sleep(wait)
	}
	c.watch.And(^leaderAsleep) // before anything is delivered here: what the leader queues wakes nobody
	c.waits.dispatch(n)
	came = c.pollInlets() || n > 0
	end = c.Now()
	c.looked.Store(int64(end))
	c.background.leaderWakes(end-now, len(c.poller.inlets) > 0)
	return end, came
}

// isAsleep reports whether a leader sleeps in the poller, or is about to.
func (c *Context) isAsleep() bool { return c.watch.Load()&leaderAsleep != 0 }

// nothingHappened is the error of a Progress in which nothing happened.
func (c *Context) nothingHappened() error {
	if c.state.Load() == ctxReleased {
		return ErrClosed
	}
	if err := c.brokenBy(); err != nil {
		return err
	}
	return ErrTimeout
}

// hasReady reports whether Trigger has something to run, or somebody has called Wake.
func (c *Context) hasReady() bool { return c.woken.Load() || c.Upper().HasQueued() }

// HasQueued reports whether Trigger has something to run.
func (c upper) HasQueued() bool {
	return c.cq.len() > 0 || c.onMessage != nil && c.ep.countInbox() > 0
}

// wakeLeader makes the leader look whether something is ready, if it sleeps.
func (c *Context) wakeLeader() {
	if c.driver != nil {
		c.driver.Wake()
	}
	if c.isAsleep() {
		c.waits.wake()
	}
}
