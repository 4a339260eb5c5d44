package na

import (
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"time"
)

// An inletSet holds the inlets of a context. Only the leader uses it.
//
// The inlets are armed while a leader sleeps in the poller, or while the background poller is
// parked behind its open gate. Otherwise they are polled, by the leader now or by the background
// poller within 2 ms. So a leader that polls armed inlets disarms them, and makes the background
// poller tick, because the leader may go on to run user code.
type inletSet struct {
	inlets   []carrier.Inlet // constant once the context has its endpoint
	armed    bool
	panicked func(v, at any) // called after a panic v in a method of at
}

// AddInlet makes the leader poll s. It is called while the endpoint is made.
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

// disarm disarms all inlets, and reports whether they were armed.
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

// pollInlets processes the data that has arrived at inlets, and reports whether there was any.
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

// peekInlet polls one inlet and recovers a panic of it.
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

// pollAll processes all data that has arrived, without blocking.
func (c *Context) pollAll(now time.Duration) {
	c.looked.Store(int64(now))
	c.pollInlets()
	c.waits.wait(0)
}

// pollSpinning polls for a leader that spins: the inlets each time, the descriptors less often
// because that needs a system call. It reports whether anything has arrived.
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

// A leaderPoller is the part of a poller that the leader uses.
type leaderPoller interface {
	wait(d time.Duration) int
	sleep(d time.Duration) int
	dispatch(n int)
	wake()
}
