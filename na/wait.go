package na

// Wake has one Progress that sleeps now, or else the next one, return nil.
func (c *Context) Wake() {
	c.woken.Store(true)
	c.Stir()
}

// Stir has those who are in ProgressUntil look at ready.
func (c *Context) Stir() {
	c.rouse()
	c.callFollowers(-1)
}

// Hold keeps c from being drained until Unhold: a callback is about to be queued above. It reports false when c has been
// drained already: the callback would never run.
func (c *Context) Hold() bool {
	if c.live.Add(1) > 0 {
		return true
	}
	c.live.Add(-1)
	return false
}

// Unhold says that a callback has returned, or was not queued after all.
func (c *Context) Unhold() { c.callbackReturned() }

// EnterApart returns run(n), which is code of the program that the layer above runs outside Trigger: meanwhile Inside reports true.
func (c *Context) EnterApart(run func(int) int, n int) int { return c.apart.Run(run, n) }

// Inside reports whether the caller is inside a callback of c, or of the layer above. It walks the stack: for rare calls only.
func (c *Context) Inside() bool { return c.InTrigger() || c.apart.Inside() }

// InTrigger is Inside without what EnterApart runs.
func (c *Context) InTrigger() bool { return c.mark.Inside() }

// EnterTrigger is EnterApart for what runs between two Triggers of a goroutine that nobody else relieves.
func (c *Context) EnterTrigger(run func(int) int, n int) int { return c.mark.Run(run, n) }
