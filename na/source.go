package na

import "time"

// A Source is where work appears that no descriptor tells of, as in memory that is shared with a peer. Only the goroutine that
// leads Progress, or the assist in its place, calls its methods, with no lock held. They do not wait.
//
// A bell is what a Source that is armed rings when work appears: it makes a descriptor ready that is in the context's poller.
// Between Arm and the end of the leader's sleep, or of the assist's rest, a bell rings or nothing has come.
type Source interface {
	// Peek takes in what has come, some of it, and reports whether anything had. It is called again and again by a leader that
	// polls: when nothing has come it costs a few loads.
	Peek() bool
	// Arm has the bell ring at the next work, and reports whether there is some already: then the bell need not ring, and Peek
	// follows. It tells peers first and looks for work then. It is called before each sleep, for a bell that is armed too: one that
	// has rung is not armed any more. Peers that come later are armed as well, until Disarm.
	Arm() bool
	// Disarm says that somebody looks and that the bell need not ring. It may all the same. Peers that have long been idle may stay
	// armed if the Ready of their bells has Peek look at them. A Source begins disarmed.
	Disarm()
}

// bells are the sources of a context. The goroutine that leads uses them.
//
// They are armed while a leader sleeps in the poller, or the assist rests behind its open gate; otherwise somebody looks, the
// leader now or the assist within 2 ms. So a leader that looks while they are armed disarms them, and then has the assist
// tick: it may leave for user code without another word.
type bells struct {
	sources []Source // not changed once the context has its endpoint
	armed   bool
}

// AddSource has the leader look at s. It is called while the Domain makes the endpoint.
func (p *Poller) AddSource(s Source) { p.bells.sources = append(p.bells.sources, s) }

// arm arms all, and reports whether there is work already.
func (b *bells) arm() (work bool) {
	for _, s := range b.sources {
		b.armed = true
		if s.Arm() {
			work = true
		}
	}
	return work
}

// disarm disarms all, and reports whether they were armed.
func (b *bells) disarm() bool {
	if !b.armed {
		return false
	}
	b.armed = false
	for _, s := range b.sources {
		s.Disarm()
	}
	return true
}

// peek takes in what has come without a descriptor, and reports whether anything had.
func (c *Context) peek() (came bool) {
	b := &c.poller.bells
	if b.disarm() {
		c.assist.attend()
	}
	for _, s := range b.sources {
		if s.Peek() {
			came = true
		}
	}
	return came
}

// look takes in what has come, and waits for nothing.
func (c *Context) look(now time.Duration) {
	c.looked.Store(int64(now))
	c.peek()
	c.waits.wait(0)
}

// glance looks as a leader does that polls: at the sources each time, at the descriptors less often, because that takes a
// system call.
func (c *Context) glance() bool {
	if c.peek() {
		return true
	}
	every := uint(hotLooks)
	if len(c.poller.sources) > 0 {
		every = sourceLooks
	}
	if c.spinner.looks++; c.spinner.looks%every != 0 {
		if came, asked := c.poller.peek(); asked || len(c.poller.sources) > 0 {
			return came
		}
	}
	return c.waits.wait(0) > 0
}

// A waiter is the Poller as the leader uses it.
type waiter interface {
	wait(d time.Duration) int
	sleep(d time.Duration) int
	dispatch(n int)
	wake()
}
