package na

import (
	"context"
	"fmt"
	"slices"
	"time"
)

const (
	// ackTime bounds what Shutdown waits for once its time is over: peers take what was sent to
	// them, and callbacks return. In time too it waits no longer for the sign of a peer that is
	// known to have every message.
	ackTime = 400 * time.Millisecond
	// lullTime is how long no peer must have reached registered memory: the next piece of its
	// transfer may be on its way.
	lullTime = 50 * time.Millisecond
	// driveStep is how long one context is driven while the others wait for their turn.
	driveStep = 5 * time.Millisecond
)

// Underway counts what an orderly end waits for.
type Underway struct {
	Sends   int    // messages that have not left
	Moves   int    // gets and puts of this process that have not ended
	Served  int    // gets and puts of peers that have not ended
	Leases  int    // leases that have not ended
	Streams int    // streams that are closed for writing, and of which not everything has left
	Reached uint64 // gets and puts of peers that have begun, ever
}

// An Unconfirmed counts messages to a peer that have left, and that it is not known to have
// received.
type Unconfirmed struct {
	Peer     Addr // zero: others, beyond the first 32
	Messages int
}

// Unconfirmed returns, by peer, the messages that nobody can say more of: those to peers that have
// been lost, but for requests of calls, whose ends say it, and answers; and those that peers have
// not confirmed since. A sign of life of the peer, or an envelope that it returns, confirms what
// was sent before.
func (c upper) Unconfirmed() []Unconfirmed { return c.ep.listUnconfirmed() }

// Drain begins an orderly end: no peer that comes now is let in, and layers above begin nothing
// new. What there is goes on until Close. It may be called anywhere.
func (c *Context) Drain() {
	if c.state.CompareAndSwap(ctxOpen, ctxDraining) {
		c.ep.refuseNewPeers()
	}
}

// Drain is Drain of every context, and there will be no more of them.
func (c *Class) Drain() {
	c.mu.Lock()
	c.draining = true
	contexts := c.contexts
	c.mu.Unlock()
	for _, nctx := range contexts {
		nctx.Drain()
	}
}

// Underway counts what has not ended.
func (c upper) Underway() Underway { return c.ep.countUnderway() }

// Shutdown is Shutdown of every context of c together.
func (c *Class) Shutdown(ctx context.Context) error {
	c.mu.Lock()
	contexts := c.contexts
	c.mu.Unlock()
	return shutdown(ctx, &Shutdown{Contexts: contexts, Drain: c.Drain, Close: func() { _ = c.Close() }, Closed: c.Closed})
}

// Shutdown ends c in good order and drives it meanwhile. No peer that comes now is let in.
// Messages, gets and puts that are under way, those of peers in registered memory too, may end
// until ctx does, or, if that has no deadline, Config.Linger has passed; what is received is not
// waited for. Until then, too, peers may confirm what was sent to them; a peer that is silent for
// Config.PeerTimeout, or that a transport has repeated its packets for often enough, is given up.
// Then c is closed, and every callback runs. It returns the cause of ctx, ErrTimeout, or
// ErrPeerLost when peers were lost that have not confirmed everything, with what was cut off or not
// confirmed, or with the number of callbacks that have not returned.
//
// It ends soon after ctx and Config.Linger at the latest, unless a callback that it runs itself
// does not return. Inside a callback of c it returns an error at once: it could never end.
func (c *Context) Shutdown(ctx context.Context) error {
	return shutdown(ctx, &Shutdown{Contexts: []*Context{c}, Drain: c.Drain, Close: c.Close, Closed: c.Closed})
}

func shutdown(ctx context.Context, e *Shutdown) error {
	if e.isInside() {
		return fmt.Errorf("na: shutdown: called inside a callback, which it would wait for; use Close: %w", ErrBusy)
	}
	var cut Underway
	e.Trigger = func(i int) int { return e.Contexts[i].Trigger(0) }
	e.Idle = func(i int) bool {
		u := e.Contexts[i].Upper().Underway()
		return u.Sends == 0 && u.Moves == 0 && u.Leases == 0 && u.Streams == 0
	}
	e.CancelRest = func() {
		for _, c := range e.Contexts {
			u := c.Upper().Underway()
			cut.Sends, cut.Moves, cut.Served = cut.Sends+u.Sends+u.Streams, cut.Moves+u.Moves, cut.Served+u.Served
			cut.Leases += u.Leases
		}
	}
	e.NoMoreReplies = func(int) bool { return true }
	err := e.Run(ctx)
	switch {
	case err == nil:
		return nil
	case e.Closed():
		unconfirmed := 0
		for _, u := range e.Unconfirmed {
			unconfirmed += u.Messages
		}
		return fmt.Errorf("na: shutdown: %d messages, %d gets and puts, %d of peers, and %d leases were cut off, %d messages not confirmed: %w",
			cut.Sends, cut.Moves, cut.Served, cut.Leases, unconfirmed, err)
	}
	live := int64(0)
	for _, c := range e.Contexts {
		live += c.Live()
	}
	return fmt.Errorf("na: shutdown: %d operations left: %w", live, err)
}

// A Shutdown is an orderly end in phases: how Shutdown goes, for this package and for layers above.
//
//	Drain ─► what is under way ends ─► CancelRest ─► peers have taken everything ─► Close ─► every callback has returned
//	         ctx, Config.Linger                     the same, and ackTime              ackTime, and no callback is left to run
type Shutdown struct {
	Contexts      []*Context
	Drain         func()
	Trigger       func(i int) int  // of the layer above, for a context
	Idle          func(i int) bool // nothing is under way there but what peers do with registered memory
	CancelRest    func()           // the wait is over: counts what is left, and cancels what it can
	NoMoreReplies func(i int) bool // nobody is about to send an answer
	Close         func()
	Closed        func() bool

	Unconfirmed []Unconfirmed // that were not confirmed in the end, by Run

	start time.Duration
}

// Run returns nil when everything had ended by itself, the cause of ctx, ErrTimeout when
// Config.Linger has passed, ErrPeerLost when only messages to peers that are gone were not
// confirmed, or ErrBusy when nothing but a callback that does not return is left. It is not called
// inside one.
func (s *Shutdown) Run(ctx context.Context) error {
	var err error
	if len(s.Contexts) > 0 {
		s.start = s.now()
	}
	if len(s.Contexts) > 0 && !s.all((*Context).Closing) {
		s.Drain()
		err = s.waitForWork(ctx)
		s.CancelRest()
		owed := s.waitForAcks(ctx)
		for _, c := range s.Contexts {
			s.Unconfirmed = append(s.Unconfirmed, c.Upper().Unconfirmed()...)
		}
		if err == nil && len(s.Unconfirmed) > 0 {
			if err = ErrPeerLost; owed {
				err = s.timeUp(ctx)
			}
		}
	}
	s.Close()
	if len(s.Contexts) > 0 {
		limit := s.now() + ackTime
		s.drive(func(ran int) bool { // callbacks may post more
			now := s.now()
			if s.all(func(c *Context) bool { return c.Live() == 0 }) && s.timeUp(ctx) == nil {
				limit = now + ackTime // all that is left is to give back what hundreds of peers had
			}
			return ran == 0 && (s.all((*Context).Closed) || now >= limit)
		})
	}
	if s.all((*Context).Closed) {
		spinUntil(ackTime, s.Closed) // callbacks that other goroutines run
	}
	switch {
	case err != nil || s.Closed():
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return ErrBusy
}

// waitForWork drives until nothing is under way.
func (s *Shutdown) waitForWork(ctx context.Context) (err error) {
	class := s.Contexts[0].class
	reached, lull := uint64(0), s.start
	s.drive(func(int) bool {
		idle, n := s.idle()
		now := s.now()
		if !idle || n != reached {
			reached, lull = n, now
		}
		switch {
		case idle && (class.Regions() == 0 || now-lull >= lullTime || ctx.Err() != nil):
			return true
		}
		err = s.timeUp(ctx)
		return err != nil
	})
	return err
}

// timeUp is why nothing is waited for any more; nil: there is time.
func (s *Shutdown) timeUp(ctx context.Context) error {
	linger := s.Contexts[0].class.cfg.Linger
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if _, bounded := ctx.Deadline(); !bounded && s.now()-s.start >= linger {
		return WithText(ErrTimeout, fmt.Sprintf("not everything ended within Config.Linger of %v", max(linger, 0)))
	}
	return nil
}

// waitForAcks drives until peers have confirmed what was sent to them, and reports whether messages
// to living ones are left that they have not: then the time is over, and ackTime after it.
func (s *Shutdown) waitForAcks(ctx context.Context) (owed bool) {
	limit := s.now() + ackTime
	s.drive(func(ran int) bool {
		confirmed, messages := s.askAcks()
		now := s.now()
		if owed = messages > 0; owed && s.timeUp(ctx) == nil {
			limit = now + ackTime
		}
		return ran == 0 && confirmed || now >= limit
	})
	return owed
}

// idle reports whether nothing is under way, and how often peers have reached registered memory.
func (s *Shutdown) idle() (idle bool, reached uint64) {
	idle = true
	for i, c := range s.Contexts {
		u := c.Upper().Underway()
		idle = idle && u.Served == 0 && (c.Closing() || s.Idle(i))
		reached += u.Reached
	}
	return idle, reached
}

// askAcks reports whether peers have everything, and how many messages they have not confirmed.
// Those of every context are asked, however long others take.
func (s *Shutdown) askAcks() (confirmed bool, messages int) {
	confirmed = true
	for i, c := range s.Contexts {
		if c.Closing() {
			continue
		}
		last := s.NoMoreReplies(i)
		if last && c.ep.countUnderway().Sends > 0 {
			confirmed = false
			continue
		}
		peers, n := c.ep.askConfirmations(last)
		if confirmed = confirmed && last && peers == 0; last {
			messages += n
		}
	}
	return confirmed, messages
}

// all reports whether f reports true for every context.
func (s *Shutdown) all(f func(*Context) bool) bool {
	return !slices.ContainsFunc(s.Contexts, func(c *Context) bool { return !f(c) })
}

func (s *Shutdown) isInside() bool {
	return slices.ContainsFunc(s.Contexts, func(c *Context) bool { return c.Upper().Inside() })
}

func (s *Shutdown) now() time.Duration { return s.Contexts[0].Now() }

// drive turns all contexts over until over, which is told how many callbacks the last turn has run,
// reports true.
func (s *Shutdown) drive(over func(ran int) bool) {
	for round := 0; ; round++ {
		ran := 0
		for i, c := range s.Contexts {
			_ = c.Progress(0)
			ran += s.Trigger(i)
		}
		if over(ran) {
			return
		}
		if ran == 0 {
			_ = s.Contexts[round%len(s.Contexts)].Progress(driveStep)
		}
	}
}
