package na

import "slices"

// maxFaults is the maximum number of lost peers waiting to be reported by Trigger. One further
// entry, without an address, stands for all others.
const maxFaults = 1024

var errMoreLost = WithText(ErrPeerLost, "more sessions lost than can be reported")

// OnFault registers fn to be called by Trigger when the session with a peer is lost. It is not
// called when a session is closed because it was idle. While 1024 losses are waiting for Trigger,
// further ones are reported together by a single call with the zero Addr; use Connected to identify
// them. The loss also fails every operation with that peer. Their callbacks may run before or after
// fn.
//
// Calling remove unregisters fn. Only a Trigger that is already reporting a loss may still call fn.
// remove may be called from any goroutine, and from fn.
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

// reportLost queues the loss of a peer for the functions registered with OnFault. By then Connected
// must return false for peer.
func (c *Context) reportLost(peer Addr, err error) {
	c.newsMu.Lock()
	before := c.faults
	if len(c.onFault) == 0 || before > maxFaults { // the call for all others has already been queued
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
	if t, err := op.beginLife(kindPost, Addr{}); err == nil { // always nil, because op is idle
		t.finish(Result{})
	}
}

// callAll calls all fns, even if one panics or calls runtime.Goexit.
func callAll(fns []*func(peer Addr, err error), peer Addr, err error) {
	if len(fns) == 0 {
		return
	}
	defer callAll(fns[1:], peer, err)
	(*fns[0])(peer, err)
}

// OnAbandon sets the function to call when a peer abandons a message e that was accepted and has
// not been freed, or withdraws a message e for which Watch was called. fn is called immediately,
// on any goroutine and with the endpoint's lock held. It must not call methods of c other than
// Queue: it should mark the record that contains e, and queue one of the record's Tasks to do the
// rest. Because the records hold the Tasks, no list of abandoned messages can grow without bound.
func (c upper) OnAbandon(fn func(e *Envelope)) { c.onAbandon.Store(&fn) }

// reportAbandoned calls the function set by OnAbandon, if any.
func (c *Context) reportAbandoned(env *Envelope) {
	if fn := c.onAbandon.Load(); fn != nil {
		(*fn)(env)
	}
}

// News returns the number of losses that Trigger has yet to report to the functions registered with
// OnFault. They are included in Live.
func (c upper) News() int64 {
	c.newsMu.Lock()
	defer c.newsMu.Unlock()
	return int64(c.faults)
}
