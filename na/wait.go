package na

// Wake makes one Progress that sleeps now, or else the next one, return nil. It does not block, and
// may be called from any goroutine.
func (c *Context) Wake() {
	c.woken.Store(true)
	c.wakeLeader()
	c.loop.Wake()
}

// Hold keeps c from being drained until Unhold, because the caller will queue a callback. It
// reports false when c is drained already: the callback would not run.
func (c upper) Hold() bool {
	if c.live.Add(1) > 0 {
		return true
	}
	c.live.Add(-1)
	return false
}

// Unhold ends a Hold: the callback has returned, or was not queued.
func (c upper) Unhold() { c.callbackReturned() }
