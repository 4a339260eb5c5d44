package na

// The endpoint calls the methods in this file on its context. They may be called from any
// goroutine, do not run user code and do not block. They may be called with the endpoint's lock
// held, except for tryPoll, and for flushSoon if the context has a driver.

// pollSoon makes the leader call endpoint.Poll again before the time returned by the last Poll,
// even if the leader is asleep or about to sleep.
func (c *Context) pollSoon() {
	if c.driver != nil {
		c.driver.Wake()
	}
	c.nudged.Store(true)
	if c.isAsleep() {
		c.waits.wake()
	}
}

// flushSoon causes frames that are held back to be sent within milliseconds, even if no goroutine
// polls.
func (c *Context) flushSoon() {
	if c.driver != nil {
		c.driver.FlushSoon()
		return
	}
	c.background.startTicking()
}

// receiveAll handles everything that has arrived from peers. The endpoint calls it before it
// declares a silent peer lost. The caller must hold the lead and must not hold any lock.
func (c *Context) receiveAll() {
	if c.poller == nil {
		return
	}
	c.pollInlets()
	for left := c.poller.waitRounds(); left > 0 && c.waits.wait(0) == eventsAtOnce; left-- {
	}
}

// tryPoll handles everything that has arrived, unless another goroutine leads.
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
