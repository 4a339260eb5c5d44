package na

// Batch runs fn, which starts or cancels operations and does not wait, and lets what they send leave together.
func (c *Context) Batch(fn func()) {
	c.corks.Add(1)
	defer c.Upper().Uncork()
	fn()
}

// Cork holds back what operations send from now on, so that it leaves together, until Uncork. Flush, Progress of any
// goroutine, and the context itself after a few milliseconds send it all the same. Corks of several goroutines add up.
// Cork reports false, and Uncork must not follow, where that cannot be.
func (c upper) Cork() bool {
	if c.background == nil && c.driver == nil {
		return false
	}
	c.corks.Add(1)
	return true
}

// Batches reports whether those who drive c may wait for other goroutines, so that what these send leaves together: not in a
// simulator, whose clock stands still meanwhile.
func (c upper) Batches() bool { return c.driver == nil }

// Uncork ends a Cork that reported true. Frames that are held back by others stay.
func (c upper) Uncork() {
	if c.corks.Add(-1) == 0 && c.ep.hasPending.Load() { // who has queued a frame since sees that none is held back, or is seen here
		c.ep.flushHeld()
	}
}

// Flush sends what is held back.
func (c upper) Flush() {
	if c.corks.Load() > 0 && c.ep.hasPending.Load() {
		c.ep.flushHeld()
	}
}
