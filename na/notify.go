package na

import "slices"

// maxFaults limits the losses of peers that wait for Trigger; one more is queued for all others,
// without an address.
const maxFaults = 1024

var errMoreLost = WithText(ErrPeerLost, "more sessions lost than can be reported")

// OnFault makes Trigger call fn when the session with a peer is lost, but not when it ends because
// it was idle. While 1024 losses wait for Trigger, further ones are reported together by one call
// with the zero Addr; use Connected to find them. The loss also ends every operation with that
// peer; their callbacks run before or after fn.
//
// remove removes fn: only a Trigger that is reporting a loss at that time may still call it. remove
// may be called from anywhere, including fn.
func (c *Context) OnFault(fn func(peer Addr, err error)) (remove func()) {
	added := &fn
	c.newsMu.Lock()
	defer c.newsMu.Unlock()
	c.onFault = append(c.onFault, added)
	return func() {
		c.newsMu.Lock()
		defer c.newsMu.Unlock()
		c.onFault = slices.DeleteFunc(slices.Clone(c.onFault), func(f *func(Addr, error)) bool { return f == added })
	}
}

// reportLost queues the loss of a peer for the functions of OnFault. Connected reports false for it
// already.
func (c *Context) reportLost(peer Addr, err error) {
	c.newsMu.Lock()
	before := c.faults
	if len(c.onFault) == 0 || before > maxFaults { // the call for all others is queued already
		c.newsMu.Unlock()
		return
	}
	c.faults++
	c.newsMu.Unlock()
	if before == maxFaults {
		peer, err = Addr{}, errMoreLost
	}
	op := c.NewOp(func(*Op, Result) {
		c.newsMu.Lock()
		c.faults--
		fns := c.onFault
		c.newsMu.Unlock()
		callAll(fns, peer, err)
	})
	if t, err := op.beginLife(kindPost, Addr{}); err == nil { // always: op is idle
		t.finish(Result{})
	}
}

// callAll calls all fns, also if one panics or calls runtime.Goexit.
func callAll(fns []*func(peer Addr, err error), peer Addr, err error) {
	if len(fns) == 0 {
		return
	}
	defer callAll(fns[1:], peer, err)
	(*fns[0])(peer, err)
}

// OnAbandon makes fn be called when a peer abandons message e, which was accepted and not freed, or
// withdraws e, which is watched. fn is called at once, on any goroutine and with the endpoint's
// lock. It marks the record that e is a part of, and queues a Task of it (Queue) for the rest; it
// must not call other methods of c. So there is no list of abandoned messages that could grow
// without limit.
func (c upper) OnAbandon(fn func(e *Envelope)) { c.onAbandon.Store(&fn) }

// reportAbandoned calls the function of OnAbandon.
func (c *Context) reportAbandoned(env *Envelope) {
	if fn := c.onAbandon.Load(); fn != nil {
		(*fn)(env)
	}
}

// News returns how many losses wait for Trigger to report them to the functions of OnFault. Live
// includes them.
func (c upper) News() int64 {
	c.newsMu.Lock()
	defer c.newsMu.Unlock()
	return int64(c.faults)
}
