package na

// Wake makes one blocked call to Progress return nil or, if none is blocked, the next call. It does
// not block and is safe for concurrent use.
func (c *Context) Wake() {
	c.woken.Store(true)
	c.wakeLeader()
	c.loop.Wake()
}

// Hold prevents c from completing its shutdown until Unhold is called, so that a callback that the
// caller is about to queue runs. It returns false if c has already run its last callback.
func (c upper) Hold() bool {
	if c.live.Add(1) > 0 {
		return true
	}
	c.live.Add(-1)
	return false
}

// Unhold undoes a successful call to Hold. It must be called once the callback has returned, or if
// no callback was queued.
func (c upper) Unhold() { c.callbackReturned() }
