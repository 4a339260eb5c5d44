package na

// A Host is a Context as its Endpoint sees it: what a plugin calls, where an Endpoint is what na calls. Its methods may be called
// from anywhere, run no user code and do not wait. Those that take no lock of the Endpoint may be called with it held: all but
// FlushSoon of a Driven domain, and Look.
type Host Context

// Context returns the context.
func (h *Host) Context() *Context { return (*Context)(h) }

// Poller returns the poller; nil if the domain is Driven.
func (h *Host) Poller() *Poller { return h.poller }

// PollSoon has the leader call Endpoint.Poll again before the time that Poll said, also if it sleeps or is about to.
func (h *Host) PollSoon() {
	if h.driver != nil {
		h.driver.Wake()
	}
	h.nudged.Store(true)
	if h.Context().asleep() {
		h.waits.wake()
	}
}

// Arrived says that a message has come for Take.
func (h *Host) Arrived() { h.Context().rouse() }

// FlushSoon has frames that are held back leave within milliseconds although nobody drives.
func (h *Host) FlushSoon() {
	if h.driver != nil {
		h.driver.FlushSoon()
		return
	}
	h.assist.attend()
}

// TakeIn takes in what has arrived from every peer. Poll calls it before it judges any by its silence, as the goroutine that
// leads, with no lock held.
func (h *Host) TakeIn() {
	if c := h.Context(); c.poller != nil {
		c.peek()
		for left := c.poller.rounds(); left > 0 && c.waits.wait(0) == eventsAtOnce; left-- {
		}
	}
}

// Look takes in what has arrived, if nobody does so already.
func (h *Host) Look() {
	c := h.Context()
	if c.driver != nil || !c.lead.TryLock() {
		return
	}
	if c.state.Load() != ctxReleased {
		now := c.Now()
		c.look(now)
		c.ep.Poll(now)
	}
	c.unlead()
}
