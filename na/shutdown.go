package na

import (
	"context"
	"fmt"
	"slices"
	"time"
)

const (
	// ackTime limits how long Shutdown continues after its deadline, for confirmations of peers and
	// for callbacks to return. It also limits the wait for a confirmation before the deadline, once
	// a peer is known to have every message.
	ackTime = 400 * time.Millisecond
	// lullTime is how long no get or put of a peer must have begun before Shutdown closes, because
	// the next chunk of a transfer may be in flight.
	lullTime = 50 * time.Millisecond
	// driveStep is how long one context is driven before the next one.
	driveStep = 5 * time.Millisecond
)

// Underway counts the operations that a graceful shutdown waits for.
type Underway struct {
	Sends   int    // messages that were not sent yet
	Moves   int    // gets and puts of this process that have not ended
	Served  int    // gets and puts of peers that have not ended
	Leases  int    // leases that have not ended
	Streams int    // streams that are closed for writing and have unsent bytes
	Reached uint64 // the total of gets and puts of peers that have begun
}

// An Unconfirmed counts the messages to a peer that were sent, and that the peer is not known to
// have received.
type Unconfirmed struct {
	Peer     Addr // zero for all peers beyond the first 32
	Messages int
}

// Unconfirmed returns, by peer, the messages whose receipt is unknown: those to peers whose
// sessions were lost, and those that peers have not confirmed yet. Requests of calls, and answers,
// to lost peers are not counted: the end of the call reports their fate. A PONG, or a credit for an
// envelope, confirms all that was sent before. It does not block.
func (c upper) Unconfirmed() []Unconfirmed { return c.ep.listUnconfirmed() }

// Drain begins a graceful shutdown. New peers are refused, and layers above start no new
// operations. Operations in flight continue until Close. It does not block, and may be called from
// any goroutine.
func (c *Context) Drain() {
	if c.state.CompareAndSwap(ctxOpen, ctxDraining) {
		c.ep.refuseNewPeers()
	}
}

// Drain calls Drain of every context of c. From now on NewContext fails.
func (c *Class) Drain() {
	c.mu.Lock()
	c.draining = true
	contexts := c.contexts
	c.mu.Unlock()
	for _, nctx := range contexts {
		nctx.Drain()
	}
}

// Underway returns the counts of operations in flight.
func (c upper) Underway() Underway { return c.ep.countUnderway() }

// Shutdown is Context.Shutdown for all contexts of c together.
func (c *Class) Shutdown(ctx context.Context) error {
	c.mu.Lock()
	contexts := c.contexts
	c.mu.Unlock()
	return shutdown(ctx, &Shutdown{Contexts: contexts, Drain: c.Drain, Close: func() { _ = c.Close() }, Closed: c.Closed})
}

// Shutdown shuts c down gracefully, and drives it meanwhile. It blocks, in three steps:
//
//  1. Peers that connect are refused. Messages, gets and puts that are in flight may end, also those
//     of peers in registered memory. Posted receives are not waited for. This ends when ctx ends or, if
//     ctx has no deadline, after Config.Linger.
//  2. In the same time peers confirm what was sent to them. A peer that is silent for
//     Config.PeerTimeout, or to which a transport has repeated packets often enough, is given up.
//  3. c is closed, and every callback runs.
//
// It returns the cause of ctx, ErrTimeout, or ErrPeerLost when peers were lost that have not
// confirmed everything. The error text has the counts of aborted operations, of unconfirmed
// messages, or of callbacks that have not returned.
//
// It returns soon after ctx or Config.Linger ends, unless a callback that it runs itself does not
// return. Inside a callback of c it returns ErrBusy at once, because it would wait for that
// callback.
func (c *Context) Shutdown(ctx context.Context) error {
	return shutdown(ctx, &Shutdown{Contexts: []*Context{c}, Drain: c.Drain, Close: c.Close, Closed: c.Closed})
}

func shutdown(ctx context.Context, e *Shutdown) error {
	if e.isInside() {
		return fmt.Errorf("na: shutdown: called from a callback; use Close: %w", ErrBusy)
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
		return fmt.Errorf("na: shutdown: aborted %d messages, %d gets and puts, %d gets and puts of peers and %d leases, %d messages unconfirmed: %w",
			cut.Sends, cut.Moves, cut.Served, cut.Leases, unconfirmed, err)
	}
	live := int64(0)
	for _, c := range e.Contexts {
		live += c.Live()
	}
	return fmt.Errorf("na: shutdown: %d operations in flight: %w", live, err)
}

// A Shutdown implements the steps of a graceful shutdown, for this package and for layers above.
//
//	Drain ─► what is in flight ends ─► CancelRest ─► peers confirm everything ─► Close ─► every callback has returned
//	         ctx, Config.Linger                     the same, and ackTime              ackTime, and no callback is left to run
type Shutdown struct {
	Contexts []*Context
	Drain    func()
	Trigger  func(i int) int // runs callbacks of Contexts[i]; the layer above sets it
	// reports whether nothing is in flight in Contexts[i] but gets and puts of peers
	Idle          func(i int) bool
	CancelRest    func()           // runs after the wait: counts the remaining operations and cancels what it can
	NoMoreReplies func(i int) bool // reports whether no handler may still answer in Contexts[i]
	Close         func()
	Closed        func() bool

	Unconfirmed []Unconfirmed // set by Run: the messages that were not confirmed

	start time.Duration
}

// Run carries out the steps. It blocks, and must not be called inside a callback. It returns nil
// when everything has ended by itself, the cause of ctx, ErrTimeout when Config.Linger has passed,
// ErrPeerLost when only messages to lost peers were not confirmed, or ErrBusy when only callbacks
// that do not return are left.
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
				limit = now + ackTime // no callback is left, but the memory of many sessions may have to be released
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

// waitForWork drives until nothing is in flight. It returns an error if the time is over first.
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

// timeUp returns an error if the time is over.
func (s *Shutdown) timeUp(ctx context.Context) error {
	linger := s.Contexts[0].class.cfg.Linger
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if _, bounded := ctx.Deadline(); !bounded && s.now()-s.start >= linger {
		return WithText(ErrTimeout, fmt.Sprintf("not complete within %v (Config.Linger)", max(linger, 0)))
	}
	return nil
}

// waitForAcks drives until peers have confirmed what was sent to them, until the time is over and
// ackTime has passed. owed reports whether messages to peers that are up were not confirmed.
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

// idle reports whether nothing is in flight, and the total of gets and puts of peers that have
// begun.
func (s *Shutdown) idle() (idle bool, reached uint64) {
	idle = true
	for i, c := range s.Contexts {
		u := c.Upper().Underway()
		idle = idle && u.Served == 0 && (c.Closing() || s.Idle(i))
		reached += u.Reached
	}
	return idle, reached
}

// askAcks sends PINGs to the peers of every context. It reports whether all messages are confirmed,
// and how many are not.
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

// all reports whether f returns true for every context.
func (s *Shutdown) all(f func(*Context) bool) bool {
	return !slices.ContainsFunc(s.Contexts, func(c *Context) bool { return !f(c) })
}

func (s *Shutdown) isInside() bool {
	return slices.ContainsFunc(s.Contexts, func(c *Context) bool { return c.Upper().Inside() })
}

func (s *Shutdown) now() time.Duration { return s.Contexts[0].Now() }

// drive drives all contexts in turn until over returns true. ran is how many callbacks the last
// round has run.
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
