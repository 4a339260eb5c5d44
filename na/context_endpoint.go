package na

// The endpoint calls the methods of this file on its context. They may be called from anywhere, run
// no user code and do not block. They may be called with the endpoint's lock, except tryPoll, and
// flushSoon of a context with a driver.

// pollSoon makes the leader call endpoint.Poll again before the time that Poll has returned, also
// if the leader sleeps or is about to.
func (c *Context) pollSoon() {
	if c.driver != nil {
		c.driver.Wake()
	}
	c.nudged.Store(true)
	if c.isAsleep() {
		c.waits.wake()
	}
}

// flushSoon makes frames that are held back leave within milliseconds, also if no goroutine polls.
func (c *Context) flushSoon() {
	if c.driver != nil {
		c.driver.FlushSoon()
		return
	}
	c.background.startTicking()
}

// receiveAll handles everything that has arrived from peers. The endpoint calls it before it
// declares a silent peer lost. The caller leads and holds no lock.
func (c *Context) receiveAll() {
	if c.poller == nil {
		return
	}
	c.pollInlets()
	for left := c.poller.waitRounds(); left > 0 && c.waits.wait(0) == eventsAtOnce; left-- {
	}
}

// tryPoll handles what has arrived, unless another goroutine leads.
func (c *Context) tryPoll() {
	if c.driver != nil || !c.loop.TryLead() {
		return
	}
	if c.state.Load() != ctxReleased {
		now := c.Now()
		c.pollAll(now)
		c.ep.Poll(now)
	}
	c.loop.Unlead()
}
