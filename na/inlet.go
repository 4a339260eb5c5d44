package na

import (
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"time"
)

// inletSet are the inlets of a context. The goroutine that leads uses them.
//
// They are armed while a leader sleeps in the poller, or the background poller rests behind its open gate; otherwise somebody looks, the
// leader now or the background poller within 2 ms. So a leader that looks while they are armed disarms them, and then has the background poller
// tick: it may leave for user code without another word.
type inletSet struct {
	inlets   []carrier.Inlet // not changed once the context has its endpoint
	armed    bool
	panicked func(v, at any) // is told of a panic in a method of at
}

// AddInlet makes the leader look at s. It is called while the endpoint is made.
func (p *poller) AddInlet(s carrier.Inlet) { p.inletSet.inlets = append(p.inletSet.inlets, s) }

// arm arms all, and reports whether there is work already.
func (b *inletSet) arm() (work bool) {
	for _, s := range b.inlets {
		b.armed = true
		if s.Arm() {
			work = true
		}
	}
	return work
}

// disarm disarms all, and reports whether they were armed.
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

// pollInlets takes in what has come without a descriptor, and reports whether anything had.
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

// peekInlet survives a panic of one.
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

// pollAll takes in what has come, and waits for nothing.
func (c *Context) pollAll(now time.Duration) {
	c.looked.Store(int64(now))
	c.pollInlets()
	c.waits.wait(0)
}

// pollSpinning looks as a leader does that polls: at the inlets each time, at the descriptors less often, because that takes a
// system call.
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

// A leaderPoller is the poller as the leader uses it.
type leaderPoller interface {
	wait(d time.Duration) int
	sleep(d time.Duration) int
	dispatch(n int)
	wake()
}
