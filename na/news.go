package na

// maxFaults bounds the peer losses that wait for Trigger; more are counted in Stats.PeersLost only.
const maxFaults = 1024

// OnFault adds fn to what runs, in Trigger, when the session with a peer is lost.
func (c *Context) OnFault(fn func(peer Addr, err error)) {
	c.faultMu.Lock()
	c.onFault = append(c.onFault, fn)
	c.faultMu.Unlock()
}

// Fault queues the loss of a peer for the functions of OnFault. Plugins call it.
func (c *Context) Fault(peer Addr, err error) {
	c.faultMu.Lock()
	fns := c.onFault
	c.faultMu.Unlock()
	if len(fns) == 0 || c.faults.Load() >= maxFaults {
		return
	}
	op := c.NewOp(func(*Op, Result) {
		c.faults.Add(-1)
		for _, fn := range fns {
			fn(peer, err)
		}
	})
	if t, err := op.start(kindPost, peer); err == nil {
		c.faults.Add(1)
		t.Finish(Result{})
	}
}

// OnAbandon has fn run, in Trigger, when a peer lets us know that it wants no answer any more to a message that has been
// accepted.
func (c *Context) OnAbandon(fn func(peer Addr, tag Tag)) {
	c.faultMu.Lock()
	c.onAbandon = fn
	c.faultMu.Unlock()
}

// Abandoned queues what a peer has said by Abandon. Plugins call it. News beyond a bound are dropped: they are advice.
func (c *Context) Abandoned(peer Addr, tag Tag) {
	c.faultMu.Lock()
	fn := c.onAbandon
	c.faultMu.Unlock()
	if fn == nil || c.faults.Load() >= maxFaults {
		return
	}
	op := c.NewOp(func(*Op, Result) {
		c.faults.Add(-1)
		fn(peer, tag)
	})
	if t, err := op.start(kindPost, peer); err == nil {
		c.faults.Add(1)
		t.Finish(Result{})
	}
}
