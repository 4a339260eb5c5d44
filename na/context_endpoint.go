package na

// What follows is what an endpoint calls of its context. These methods may be called from anywhere, run no user code and do not wait. They take
// no lock of the endpoint, so they may be called with it held: all but flushSoon of a context with a driver, and tryPoll.

// pollSoon has the leader call endpoint.poll again before the time that poll said, also if it sleeps or is about to.
func (c *Context) pollSoon() {
	if c.driver != nil {
		c.driver.Wake()
	}
	c.nudged.Store(true)
	if c.isAsleep() {
		c.waits.wake()
	}
}

// flushSoon has frames that are held back leave within milliseconds although nobody drives.
func (c *Context) flushSoon() {
	if c.driver != nil {
		c.driver.FlushSoon()
		return
	}
	c.background.startTicking()
}

// receiveAll takes in what has arrived from every peer. The endpoint calls it before it judges any by its silence, as the goroutine that
// leads, with no lock held.
func (c *Context) receiveAll() {
	if c.poller == nil {
		return
	}
	c.pollInlets()
	for left := c.poller.waitRounds(); left > 0 && c.waits.wait(0) == eventsAtOnce; left-- {
	}
}

// tryPoll takes in what has arrived, if nobody does so already.
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
