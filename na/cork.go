package na

// Batch runs fn, and then sends the frames of all operations that fn has started or canceled
// together. fn must not block.
func (c *Context) Batch(fn func()) {
	c.corks.Add(1)
	defer c.Upper().Uncork()
	fn()
}

// Cork holds back the frames of operations until Uncork is called, so that they are sent together.
// Corks nest, even across goroutines. Flush, a call to Progress by any goroutine, or a timeout of
// a few milliseconds sends the frames earlier. If the context cannot hold back frames, Cork
// returns false and the caller must not call Uncork.
func (c upper) Cork() bool {
	if c.background == nil && c.driver == nil {
		return false
	}
	c.corks.Add(1)
	return true
}

// Batches reports whether a goroutine that drives c may wait for other goroutines, so that their
// frames are sent together. It is false in a simulator, where the clock does not advance during the
// wait.
func (c upper) Batches() bool { return c.driver == nil }

// Uncork undoes a call to Cork that returned true. It sends the frames unless another Cork still
// holds them back. A goroutine that queues a frame concurrently either sees no cork and sends the
// frame itself, or has set hasPending before Uncork tests it.
func (c upper) Uncork() {
	if c.corks.Add(-1) == 0 && c.ep.hasPending.Load() {
		c.ep.flushHeld()
	}
}

// Flush sends all frames that are being held back.
func (c upper) Flush() {
	if c.corks.Load() > 0 && c.ep.hasPending.Load() {
		c.ep.flushHeld()
	}
}
