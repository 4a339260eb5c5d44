package na

import "slices"

// maxFaults bounds the peer losses that wait for Trigger; behind them waits one that names no peer.
const maxFaults = 1024

var errMoreLost = WithText(ErrPeerLost, "more sessions have ended than are told one by one")

// OnFault adds fn to what runs, in Trigger, when the session with a peer is lost; not when it has ended because it was idle. Where 1024 losses wait for Trigger, those
// that come are not told one by one: peer is the zero Addr then, and Connected tells who is gone. The loss itself ends every operation with
// that peer; their callbacks run before fn or after.
//
// remove takes fn away: only a Trigger that tells of a loss meanwhile may still run it. It may be called anywhere, fn
// included.
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

// reportLost queues the loss of a peer for the functions of OnFault. Connected reports false for it already.
func (c *Context) reportLost(peer Addr, err error) {
	c.newsMu.Lock()
	before := c.faults
	if len(c.onFault) == 0 || before > maxFaults { // what was queued last says that there are more
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
		tellAll(fns, peer, err)
	})
	if t, err := op.beginLife(kindPost, Addr{}); err == nil { // it is idle
		t.finish(Result{})
	}
}

// tellAll runs fns, the others too when one panics or ends the goroutine.
func tellAll(fns []*func(peer Addr, err error), peer Addr, err error) {
	if len(fns) == 0 {
		return
	}
	defer tellAll(fns[1:], peer, err)
	(*fns[0])(peer, err)
}

// OnAbandon has fn called when a peer lets us know that it wants no answer any more to e, which has been accepted and not freed, or takes
// e back, which is watched. fn is called at once, on any goroutine and with the lock of the endpoint held: it marks the record that e is part
// of, and has Trigger do the rest, by Queue of a Task of it. It calls nothing else of c. So there is nothing to look for, and
// nothing to drop, however many messages are abandoned before somebody triggers.
func (c upper) OnAbandon(fn func(e *Envelope)) { c.onAbandon.Store(&fn) }

// reportAbandoned calls the function of OnAbandon.
func (c *Context) reportAbandoned(env *Envelope) {
	if fn := c.onAbandon.Load(); fn != nil {
		(*fn)(env)
	}
}

// News returns how many calls of the functions of OnFault wait for Trigger. Live counts them.
func (c upper) News() int64 {
	c.newsMu.Lock()
	defer c.newsMu.Unlock()
	return int64(c.faults)
}
