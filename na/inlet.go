package na

import (
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"time"
)

// An inletSet holds the inlets of a context. An inlet is a source of received data, such as a
// shared memory ring, that can be polled without a system call. An inletSet may be used only by
// the goroutine that holds the lead.
//
// An armed inlet wakes the context's poller when data arrives. The inlets are armed while a leader
// sleeps in the poller, or while the background poller is parked with its gate open. Otherwise
// they are polled, by the leader immediately or by the background poller within 2 ms. A leader
// that finds the inlets armed disarms them and makes the background poller tick, because the
// leader may run user code next.
type inletSet struct {
	inlets   []carrier.Inlet // immutable once the context has its endpoint
	armed    bool
	panicked func(v, at any) // called after a method of at has panicked with v
}

// AddInlet makes the leader poll s. It must be called while the endpoint is being created.
func (p *poller) AddInlet(s carrier.Inlet) { p.inletSet.inlets = append(p.inletSet.inlets, s) }

// arm arms all inlets and reports whether one of them already has work.
func (b *inletSet) arm() (work bool) {
	for _, s := range b.inlets {
		b.armed = true
		if s.Arm() {
			work = true
		}
	}
	return work
}

// disarm disarms all inlets and reports whether they were armed.
func (b *inletSet) disarm() bool {
	if !b.armed {
		return false
	}
	b.armed = false
	for _, s := range b.inlets {
		s.Disarm()
	}
	return true
}

// pollInlets processes the data that has arrived at the inlets and reports whether there was any.
func (c *Context) pollInlets() (came bool) {
	b := &c.poller.inletSet
	if b.disarm() {
		c.background.startTicking()
	}
	for i := range b.inlets {
		if b.peekInlet(i) {
			came = true
		}
	}
	return came
}

// peekInlet polls a single inlet and reports whether data had arrived. It recovers if the inlet
// panics.
func (b *inletSet) peekInlet(i int) (came bool) {
	s := b.inlets[i]
	defer func() {
		if v := recover(); v != nil {
			b.panicked(v, s)
			came = true
		}
	}()
	return s.Peek()
}

// pollAll processes all data that has arrived. It does not block.
func (c *Context) pollAll(now time.Duration) {
	c.looked.Store(int64(now))
	c.pollInlets()
	c.waits.wait(0)
}

// pollSpinning polls on behalf of a spinning leader. It polls the inlets on every call and the
// descriptors less often, because those need a system call. It reports whether anything has
// arrived.
func (c *Context) pollSpinning() bool {
	if c.pollInlets() {
		return true
	}
	every := uint(hotLooks)
	if len(c.poller.inlets) > 0 {
		every = inletLooks
	}
	if c.spinner.looks++; c.spinner.looks%every != 0 {
		if came, asked := c.poller.peek(); asked || len(c.poller.inlets) > 0 {
			return came
		}
	}
	return c.waits.wait(0) > 0
}

// A leaderPoller is the subset of poller that the leader uses.
type leaderPoller interface {
	wait(d time.Duration) int
	sleep(d time.Duration) int
	dispatch(n int)
	wake()
}
