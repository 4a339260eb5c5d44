package na

// Batch runs fn, and sends the frames of the operations that fn starts or cancels together. fn must
// not block.
func (c *Context) Batch(fn func()) {
	c.corks.Add(1)
	defer c.Upper().Uncork()
	fn()
}

// Cork holds back the frames of operations until Uncork, so that they are sent together. Flush,
// Progress of any goroutine, and the context itself after a few milliseconds send them
// nevertheless. Corks of several goroutines add up. Cork reports false, and Uncork must not follow,
// if the context cannot hold back frames.
func (c upper) Cork() bool {
	if c.background == nil && c.driver == nil {
		return false
	}
	c.corks.Add(1)
	return true
}

// Batches reports whether a goroutine that drives c may wait for others, so that their frames are
// sent together. It may not in a simulator, whose clock stands still during the wait.
func (c upper) Batches() bool { return c.driver == nil }

// Uncork ends a Cork that reported true. It does not send frames that another Cork holds back. A
// goroutine that queues a frame at the same time either sees no cork and sends it, or has set
// hasPending before this test.
func (c upper) Uncork() {
	if c.corks.Add(-1) == 0 && c.ep.hasPending.Load() {
		c.ep.flushHeld()
	}
}

// Flush sends the frames that are held back.
func (c upper) Flush() {
	if c.corks.Load() > 0 && c.ep.hasPending.Load() {
		c.ep.flushHeld()
	}
}
