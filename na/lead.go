package na

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/loop"
)

// leading is who drives a context: one goroutine leads at a time, and the others that are in Progress follow. When the leader
// goes it calls one of them.
//
//	Progress ─ the lead is free ─► drive: Poll the endpoint, then sleep in the poller ─► something is queued ─► unlead
//	    │ another leads                                                                                            │
//	    └─► follow: sleep until the leader calls ◄─────────────────────────────────────────────────────────────────┘
//
// What Poll ends, and what callbacks queue, may be ready again and again before any leader sleeps. So a leader looks at the
// sockets first whenever nobody has done so for lookEvery, and a Progress that finds something ready leads then too.
type leading struct {
	lead    sync.Mutex    // held by the goroutine that leads Progress
	watch   atomic.Int32  // who takes in what arrives: what the background poller does, and leaderAsleep
	nudged  atomic.Bool   // since the leader last looked at the timers
	passes  atomic.Uint64 // times that a user's goroutine led
	looked  atomic.Int64  // when a leader last looked at every source and descriptor
	spinner spinner

	followMu  sync.Mutex      // guards the fields below
	followers []chan struct{} // those who sleep, each with a channel of one slot, filled by whoever takes it out
	spare     []chan struct{}
	following atomic.Int32
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
	deadline := loop.Never
	if now := c.Now(); timeout >= 0 && timeout < loop.Never-now {
		deadline = now + timeout
	}
	err := c.ProgressUntil((*progress)(c), deadline)
	if err == nil && !c.HasQueued() {
		c.woken.Store(false)
	}
	return err
}

// progress is a Context as what Progress waits for.
type progress Context

func (p *progress) Stirred() bool { return (*Context)(p).ready() }
func (p *progress) WillSleep()    {}

// A Polling is what a goroutine in ProgressUntil waits for.
type Polling interface {
	// Stirred reports whether it is to return, as it does when HasQueued reports true. It is quick and does not panic; who makes it true calls
	// Stir.
	Stirred() bool
	// WillSleep is called before it sleeps where only Stir wakes it.
	WillSleep()
}

// ProgressUntil is Progress until w.Stirred reports true, or the clock reads until (loop.Never: no limit).
func (c *Context) ProgressUntil(w Polling, until time.Duration) error {
	c.Flush()
	if w.Stirred() && (c.driver != nil || !c.unseen(c.Now())) {
		return nil
	}
	if c.state.Load() == ctxReleased {
		return ErrClosed
	}
	if c.driver != nil {
		if !c.Scheduled() {
			w.WillSleep()
		}
		timeout := time.Duration(-1)
		if until != loop.Never {
			timeout = max(until-c.Now(), 0)
		}
		if c.driver.Drive(timeout, w.Stirred) {
			return nil
		}
		c.tryRelease()
		return c.idle()
	}
	for {
		if c.lead.TryLock() {
			return c.drive(-1, until, w)
		}
		if err, over := c.follow(until, w); over {
			return err
		}
	}
}

// drive leads until something is ready: it Polls the endpoint, and waits. It is called with lead held and gives it up. now is the time, if
// that is known, else less than 0.
func (c *Context) drive(now, until time.Duration, w Polling) error {
	defer c.unlead()
	c.passes.Add(1)
	if c.state.Load() == ctxReleased {
		return ErrClosed
	}
	looked, came := false, false
	way, begun := asleep, time.Duration(-1)
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
func (c *Context) sleep(now, wait time.Duration, w Polling) (came bool) {
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

// unlead gives leadership up; a follower takes over.
func (c *Context) unlead() {
	c.lead.Unlock()
	c.callFollower()
	c.tryRelease()
}

// follow waits while another goroutine leads. over is false when leadership may be free.
func (c *Context) follow(until time.Duration, w Polling) (err error, over bool) {
	w.WillSleep()
	token := c.joinFollowers()
	defer func() {
		if called := c.leaveFollowers(token); called && over {
			c.callFollower() // it would have led
		}
	}()
	if w.Stirred() {
		return nil, true
	}
	if c.lead.TryLock() { // it became free before we were listed
		return c.drive(-1, until, w), true
	}
	var expired <-chan time.Time
	if until != loop.Never {
		left := until - c.Now()
		if left <= 0 {
			return c.idle(), true
		}
		timer := time.NewTimer(left)
		defer timer.Stop()
		expired = timer.C
	}
	select {
	case <-token:
		token <- struct{}{} // for leaveFollowers
		return nil, w.Stirred()
	case <-expired:
		return c.idle(), true
	}
}

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

func (c *Context) joinFollowers() (token chan struct{}) {
	c.followMu.Lock()
	defer c.followMu.Unlock()
	if last := len(c.spare) - 1; last >= 0 {
		token, c.spare = c.spare[last], c.spare[:last]
	} else {
		token = make(chan struct{}, 1)
	}
	c.followers = append(c.followers, token)
	c.following.Add(1)
	return token
}

// leaveFollowers reports whether somebody has called.
func (c *Context) leaveFollowers(token chan struct{}) (called bool) {
	c.followMu.Lock()
	defer c.followMu.Unlock()
	select {
	case <-token:
		called = true
	default:
		for i, f := range c.followers {
			if f == token {
				c.followers = append(c.followers[:i], c.followers[i+1:]...)
				c.following.Add(-1)
				break
			}
		}
	}
	c.spare = append(c.spare, token)
	return called
}

// callFollower makes one follower look, the one who came first.
func (c *Context) callFollower() { c.callFollowers(1) }

// callFollowers makes at most n look (negative: all).
func (c *Context) callFollowers(n int) {
	if c.following.Load() == 0 {
		return
	}
	c.followMu.Lock()
	defer c.followMu.Unlock()
	for ; n != 0 && len(c.followers) > 0; n-- {
		c.followers[0] <- struct{}{} // never blocks: it is in the list
		c.followers = append(c.followers[:0], c.followers[1:]...)
		c.following.Add(-1)
	}
}

// ready reports whether Trigger has something to run, or somebody has called Wake.
func (c *Context) ready() bool { return c.woken.Load() || c.HasQueued() }

// HasQueued reports whether Trigger has something to run.
func (c *Context) HasQueued() bool {
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
