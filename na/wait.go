package na

// Wake makes one sleeping Progress or, if there is none, the next one return nil. It does not block
// and is safe for concurrent use.
func (c *Context) Wake() {
	c.woken.Store(true)
	c.wakeLeader()
	c.loop.Wake()
}

// Hold keeps c from being drained until Unhold is called, for a caller that will queue a callback.
// It returns false if c has already been drained, in which case the callback would not run.
func (c upper) Hold() bool {
	if c.live.Add(1) > 0 {
		return true
	}
	c.live.Add(-1)
	return false
}

// Unhold releases a Hold after the callback has returned or if it was not queued.
func (c upper) Unhold() { c.callbackReturned() }
