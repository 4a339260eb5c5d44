package na

import (
	"errors"
	"os"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/loop"
)

// leading is how a context is driven: by the goroutine that leads its loop, or the background poller.
//
// What Poll ends, and what callbacks queue, may be ready again and again before any leader sleeps. So a leader looks at the
// sockets first whenever nobody has done so for lookEvery, and a Progress that finds something ready looks then, too.
type leading struct {
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

// unseen reports whether nobody has looked at the inlets and descriptors for lookEvery.
func (c *Context) unseen(now time.Duration) bool {
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
	if c.ready() {
		if c.driver == nil && c.unseen(c.Now()) {
			c.tryPoll()
		}
		return nil
	}
	if c.driver != nil {
		return c.pollDriver(timeout, (*progress)(c))
	}
	w := c.leading.progress.Swap(nil)
	if w == nil {
		w = c.loop.NewPoller(c.isReady)
	}
	err := w.PollFor(timeout)
	c.leading.progress.Store(w)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return c.idle()
	}
	return err
}

// makeLoop makes the loop of a context.
func (c *Context) makeLoop() {
	mode := loop.Lend
	if !c.Upper().Batches() {
		mode = loop.Each
	}
	c.loop, c.isReady = loop.New((*driver)(c), mode), c.ready
}

// Loop returns the loop of those who wait for c, for the layer above.
func (c upper) Loop() *loop.Loop { return c.loop }

// OnRun has the leader of the loop call f before callbacks run. It is for the layer above, and called before anybody drives c.
func (c upper) OnRun(f func()) { c.onRun = f }

// progress is a Context as what Progress waits for in a simulator.
type progress Context

func (p *progress) Stirred() bool { return (*Context)(p).ready() }
func (p *progress) WillSleep()    {}

// A polling is what a goroutine that polls waits for.
type polling interface {
	// Stirred reports whether it is to return. It is quick and does not panic.
	Stirred() bool
	// WillSleep is called before it sleeps where only a wake-up ends that.
	WillSleep()
}

// driver is a Context as its loop drives it.
type driver Context

func (d *driver) Poll(w *loop.Waiter, until time.Duration) error { return (*Context)(d).poll(w, until) }
func (d *driver) Queued() int                                    { return (*Context)(d).Upper().Queued() }
func (d *driver) Stir()                                          { (*Context)(d).rouse() }
func (d *driver) Now() time.Duration                             { return (*Context)(d).Now() }
func (d *driver) Hold() bool                                     { return (*Context)(d).Upper().Cork() }
func (d *driver) Unhold()                                        { (*Context)(d).Upper().Uncork() }
func (d *driver) Flush()                                         { (*Context)(d).Upper().Flush() }
func (d *driver) Freed()                                         { (*Context)(d).tryRelease() }

func (d *driver) Run(w *loop.Waiter, max int) int {
	c := (*Context)(d)
	if c.onRun != nil {
		c.onRun()
	}
	if c.Upper().Settled() == 0 {
		return 0
	}
	return c.Upper().TriggerUntil(w, max)
}

// poll moves bytes until w.Stirred reports true, or the clock reads until (loop.Never: no limit). The goroutine leads.
func (c *Context) poll(w polling, until time.Duration) error {
	c.Upper().Flush()
	if w.Stirred() && (c.driver != nil || !c.unseen(c.Now())) {
		return nil
	}
	if c.driver != nil {
		timeout := time.Duration(-1)
		if until != loop.Never {
			timeout = max(until-c.Now(), 0)
		}
		return c.pollDriver(timeout, w)
	}
	if c.state.Load() == ctxReleased {
		return ErrClosed
	}
	return c.drive(until, w)
}

// pollDriver is poll in a simulator.
func (c *Context) pollDriver(timeout time.Duration, w polling) error {
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
	return c.idle()
}

// drive polls until something is ready: it Polls the endpoint, and waits.
func (c *Context) drive(until time.Duration, w polling) error {
	c.passes.Add(1)
	if c.state.Load() == ctxReleased {
		return ErrClosed
	}
	looked, came := false, false
	way, begun, now := asleep, time.Duration(-1), time.Duration(-1)
	for ; ; now = -1 {
		if now < 0 {
			now = c.Now()
		}
		if begun >= 0 {
			c.spinner.learn(way, now-begun, came)
			begun = -1
		}
		if c.unseen(now) || !looked && now >= until {
			c.look(now)
		}
		if c.nudged.Load() {
			c.nudged.Store(false)
		}
		next := c.ep.Poll(now)
		switch {
		case w.Stirred():
			return nil
		case c.releasable() && c.release():
			return ErrClosed
		case c.brokenBy() != nil:
			return c.brokenBy()
		case now >= until:
			return ErrTimeout
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
			c.look(now)
			continue
		}
		way, begun, came = c.spinner.choose(now), now, false
		if way == awake {
			begun -= c.spinner.vain
			switch end, how := c.spin(now, wait, w); how {
			case spinCame:
				if came = true; w.Stirred() { // how long it took nobody needs to know
					c.spinner.learn(awake, 0, true)
					return nil
				}
				continue
			case spinDue:
				begun = -1
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
		came = c.sleep(now, wait, w)
	}
}

// sleep waits in the poller. A goroutine that queues a completion meanwhile, or sets a timer, sees that it sleeps and wakes it; one who did so
// before is seen here. Work at an inlet rings, or was there when the bells were armed. It reports whether anything came, or
// only the time.
func (c *Context) sleep(now, wait time.Duration, w polling) (came bool) {
	c.watch.Or(leaderAsleep)
	c.background.leaderSleeps()
	n := 0
	if !w.Stirred() && !c.nudged.Load() && !c.releasable() && c.brokenBy() == nil && !c.poller.arm() {
		n = c.waits.sleep(wait)
	}
	c.watch.And(^leaderAsleep) // before anything is delivered here: what the leader queues wakes nobody
	c.waits.dispatch(n)
	came = c.peek() || n > 0
	end := c.Now()
	c.looked.Store(int64(end))
	c.background.leaderWakes(end-now, len(c.poller.inlets) > 0)
	return came
}

// asleep reports whether a leader sleeps in the poller, or is about to.
func (c *Context) asleep() bool { return c.watch.Load()&leaderAsleep != 0 }

// idle is the error of a Progress in which nothing happened.
func (c *Context) idle() error {
	if c.state.Load() == ctxReleased {
		return ErrClosed
	}
	if err := c.brokenBy(); err != nil {
		return err
	}
	return ErrTimeout
}

// ready reports whether Trigger has something to run, or somebody has called Wake.
func (c *Context) ready() bool { return c.woken.Load() || c.Upper().HasQueued() }

// HasQueued reports whether Trigger has something to run.
func (c upper) HasQueued() bool {
	return c.cq.len() > 0 || c.onMessage != nil && c.ep.countInbox() > 0
}

// rouse makes the leader look whether something is ready, if it sleeps.
func (c *Context) rouse() {
	if c.driver != nil {
		c.driver.Wake()
	}
	if c.asleep() {
		c.waits.wake()
	}
}
