package na

// Batch runs fn, which starts or cancels operations and does not wait, and lets what they send leave together.
func (c *Context) Batch(fn func()) {
	c.cork()
	defer c.Uncork()
	fn()
}

// Cork holds back what operations send from now on, so that it leaves together, until Uncork. Flush, Progress of any
// goroutine, and the context itself after a few milliseconds send it all the same. Corks of several goroutines add up.
// Cork reports false, and Uncork must not follow, where that cannot be.
func (c *Context) Cork() bool {
	if c.background == nil && c.driver == nil {
		return false
	}
	c.cork()
	return true
}

func (c *Context) cork() {
	c.corks.Add(1) // first: Flush must see what is held back
	c.ep.hold()
}

// Batches reports whether those who drive c may wait for other goroutines, so that what these send leaves together: not in a
// simulator, whose clock stands still meanwhile.
func (c *Context) Batches() bool { return c.driver == nil }

// Uncork ends a Cork that reported true.
func (c *Context) Uncork() {
	c.corks.Add(-1)
	c.ep.unhold()
}

// Flush sends what is held back.
func (c *Context) Flush() {
	if c.corks.Load() > 0 {
		c.ep.flushHeld()
	}
}
