package na

import (
	"context"
	"fmt"
	"slices"
	"time"
)

const (
	// ackTime is how long Shutdown continues after its deadline in order to wait for peers'
	// confirmations and for callbacks to return. Before the deadline, it is how long Shutdown waits
	// for final confirmations once no messages are unconfirmed.
	ackTime = 400 * time.Millisecond
	// lullTime is the time without a new get or put by a peer after which Shutdown may close the
	// context. Without it, Shutdown could interrupt a transfer between two chunks.
	lullTime = 50 * time.Millisecond
	// driveStep is how long Shutdown drives one context before turning to the next.
	driveStep = 5 * time.Millisecond
)

// Underway counts the operations that a graceful shutdown waits for.
type Underway struct {
	Sends   int    // number of messages not yet sent
	Moves   int    // number of incomplete gets and puts of this process
	Served  int    // number of incomplete gets and puts of peers
	Leases  int    // number of active leases
	Streams int    // number of streams that are closed for writing and have unsent bytes
	Reached uint64 // total number of gets and puts that peers have started
}

// An Unconfirmed counts the messages sent to a peer that the peer is not known to have received.
type Unconfirmed struct {
	Peer     Addr // bound to a session with the peer, for Label; zero for all peers beyond the first 32
	Messages int
}

// Unconfirmed returns, by peer, the number of messages whose receipt is unknown: those sent to
// peers whose sessions were lost, and those that peers have not yet confirmed. For lost peers, it
// does not count the requests of calls, whose completion reports their fate, or answers. A PONG, or
// a credit for an envelope, confirms everything sent before it. Unconfirmed does not block.
func (c upper) Unconfirmed() []Unconfirmed { return c.ep.listUnconfirmed() }

// Drain begins a graceful shutdown. New peers are refused, and higher layers start no new
// operations. Operations in flight continue until Close. Drain does not block and is safe for
// concurrent use.
func (c *Context) Drain() {
	if c.state.CompareAndSwap(ctxOpen, ctxDraining) {
		c.ep.refuseNewPeers()
	}
}

// Drain calls Drain for every context of c. Subsequent calls to NewContext fail.
func (c *Class) Drain() {
	c.mu.Lock()
	c.draining = true
	contexts := c.contexts
	c.mu.Unlock()
	for _, nctx := range contexts {
		nctx.Drain()
	}
}

// Underway returns the number of operations in flight in c, by kind. It does not block.
func (c upper) Underway() Underway { return c.ep.countUnderway() }

// Shutdown is like Context.Shutdown, for all contexts of c together.
func (c *Class) Shutdown(ctx context.Context) error {
	c.mu.Lock()
	contexts := c.contexts
	c.mu.Unlock()
	return shutdown(ctx, &Shutdown{Contexts: contexts, Drain: c.Drain, Close: func() { _ = c.Close() }, Closed: c.Closed})
}

// Shutdown shuts c down gracefully, driving it in the meantime. It blocks and proceeds in three
// steps:
//
//  1. Peers that connect are refused. Messages, gets, and puts in flight may complete,
//     including those of peers in registered memory. Posted receives are not waited for. This
//     step lasts at most until ctx is done or, if ctx has no deadline, until Config.Linger has
//     elapsed.
//  2. At the same time, peers confirm the messages sent to them. A peer is given up if it is
//     silent for Config.PeerTimeout or if a transport has retransmitted to it often enough.
//  3. c is closed, and every callback runs.
//
// Shutdown returns the cause of ctx, ErrTimeout, or, if peers were lost before they confirmed
// everything, ErrPeerLost. The error text includes the number of aborted operations, unconfirmed
// messages, or callbacks that have not returned.
//
// Shutdown returns soon after ctx is done or Config.Linger has elapsed, unless a callback that it
// runs itself does not return. If called from a callback of c, it immediately returns ErrBusy,
// because it would otherwise wait for that callback.
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
	e.CancelRest = func(error) {
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

// A Shutdown carries out a graceful shutdown of one or more contexts, for this package and for
// higher layers.
//
// It calls Drain and waits for operations in flight until the time limit expires, which is the
// deadline of the context or Config.Linger. It then calls CancelRest, waits for peers to confirm
// all messages until ackTime after the time limit, calls Close, and waits for callbacks to return.
type Shutdown struct {
	Contexts []*Context
	Drain    func()
	Trigger  func(i int) int // runs callbacks of Contexts[i]; set by the higher layer
	// reports whether nothing is in flight in Contexts[i] except gets and puts of peers
	Idle func(i int) bool
	// CancelRest runs after the wait, with the error that ended it, or nil if nothing is in flight. It counts the
	// remaining operations and cancels those it can.
	CancelRest    func(err error)
	NoMoreReplies func(i int) bool // reports whether no handler in Contexts[i] may still answer
	Close         func()
	Closed        func() bool

	Unconfirmed []Unconfirmed // set by Run: the messages not confirmed

	start time.Duration
}

// Run shuts down the contexts. It blocks and must not be called from a callback. It returns nil if
// everything completed by itself. Otherwise it returns the cause of ctx, ErrTimeout if
// Config.Linger has elapsed, ErrPeerLost if only messages to lost peers were not confirmed, or
// ErrBusy if only callbacks that do not return are left.
func (s *Shutdown) Run(ctx context.Context) error {
	var err error
	if len(s.Contexts) > 0 {
		s.start = s.now()
	}
	if len(s.Contexts) > 0 && !s.all((*Context).Closing) {
		s.Drain()
		err = s.waitForWork(ctx)
		s.CancelRest(err)
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

// waitForWork drives the contexts until nothing is in flight. If ctx is done or Config.Linger has
// elapsed before that, it returns an error.
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

// timeUp returns an error if ctx is done or, if ctx has no deadline, Config.Linger has elapsed
// since the shutdown began.
func (s *Shutdown) timeUp(ctx context.Context) error {
	linger := s.Contexts[0].class.cfg.Linger
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if _, bounded := ctx.Deadline(); !bounded && s.now()-s.start >= linger {
		return WithText(ErrTimeout, fmt.Sprintf("not complete within %v (na.Config.Linger)", max(linger, 0)))
	}
	return nil
}

// waitForAcks drives the contexts until peers have confirmed the messages sent to them, but no
// longer than ackTime after the time limit or after the last message was confirmed, whichever is
// earlier. owed reports whether messages to peers that are up remain unconfirmed.
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

// idle reports whether nothing is in flight in any context. reached is the total number of gets and
// puts that peers have started.
func (s *Shutdown) idle() (idle bool, reached uint64) {
	idle = true
	for i, c := range s.Contexts {
		u := c.Upper().Underway()
		idle = idle && u.Served == 0 && (c.Closing() || s.Idle(i))
		reached += u.Reached
	}
	return idle, reached
}

// askAcks requests a confirmation from every peer of every context. It reports whether all peers
// have confirmed all messages, and returns the number of messages that are unconfirmed.
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

// drive drives all contexts in turn until over returns true. It calls over after each round, with
// the number of callbacks that ran in that round.
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
