package na

// Wake has one Progress that sleeps now, or else the next one, return nil.
func (c *Context) Wake() {
	c.woken.Store(true)
	c.wakeLeader()
	c.loop.Wake()
}

// Hold keeps c from being drained until Unhold: a callback is about to be queued above. It reports
// false when c has been drained already: the callback would never run.
func (c upper) Hold() bool {
	if c.live.Add(1) > 0 {
		return true
	}
	c.live.Add(-1)
	return false
}

// Unhold says that a callback has returned, or was not queued after all.
func (c upper) Unhold() { c.callbackReturned() }
