package na

import (
	"context"
	"fmt"
	"slices"
	"time"
)

const (
	// farewellTime bounds what Shutdown waits for once its time is over: peers take what was sent to them, and callbacks return. In
	// time too it waits no longer for the sign of a peer that is known to have every message.
	farewellTime = 400 * time.Millisecond
	// lullTime is how long no peer must have reached registered memory: the next piece of its transfer may be on its way.
	lullTime = 50 * time.Millisecond
	// endingStep is how long one context is driven while the others wait for their turn.
	endingStep = 5 * time.Millisecond
)

// Underway counts what an orderly end waits for.
type Underway struct {
	Sends   int    // messages that have not left
	Moves   int    // gets and puts of this process that have not ended
	Served  int    // gets and puts of peers that have not ended
	Leases  int    // leases that have not ended
	Reached uint64 // gets and puts of peers that have begun, ever
}

// An Unconfirmed counts messages to a peer that have left, and that it is not known to have received.
type Unconfirmed struct {
	Peer     Addr // zero: others, beyond the first 32
	Messages int
}

// Unconfirmed returns, by peer, the messages that nobody can say more of: those to peers that have been lost, but for requests
// of calls, whose ends say it, and answers; and those that peers have not confirmed since. A sign of life of the peer, or
// an envelope that it returns, confirms what was sent before.
func (c *Context) Unconfirmed() []Unconfirmed { return c.ep.listUnconfirmed() }

// Drain begins an orderly end: no peer that comes now is let in, and layers above begin nothing new. What there is goes on
// until Close. It may be called anywhere.
func (c *Context) Drain() {
	if c.state.CompareAndSwap(ctxOpen, ctxDraining) {
		c.ep.drain()
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
func (c *Context) Underway() Underway { return c.ep.underway() }

// Shutdown is Shutdown of every context of c together.
func (c *Class) Shutdown(ctx context.Context) error {
	c.mu.Lock()
	contexts := c.contexts
	c.mu.Unlock()
	return shutdown(ctx, &Ending{Contexts: contexts, Drain: c.Drain, Close: func() { _ = c.Close() }, Closed: c.Closed})
}

// Shutdown ends c in good order and drives it meanwhile. No peer that comes now is let in. Messages, gets and puts that are
// under way, those of peers in registered memory too, may end until ctx does, or, if that has no deadline, Config.Linger has
// passed; what is received is not waited for. Until then, too, peers may confirm what was sent to them; a peer that is silent
// for Config.PeerTimeout, or that a transport has repeated its packets for often enough, is given up. Then c is closed, and
// every callback runs. It returns the cause of ctx, ErrTimeout, or ErrPeerLost when peers were lost that have not confirmed everything,
// with what was cut off or not confirmed, or with the number of callbacks that have not returned.
//
// It ends soon after ctx and Config.Linger at the latest, unless a callback that it runs itself does not return. Inside a
// callback of c it returns an error at once: it could never end.
func (c *Context) Shutdown(ctx context.Context) error {
	return shutdown(ctx, &Ending{Contexts: []*Context{c}, Drain: c.Drain, Close: c.Close, Closed: c.Closed})
}

func shutdown(ctx context.Context, e *Ending) error {
	if e.inside() {
		return fmt.Errorf("na: shutdown: called inside a callback, which it would wait for; use Close: %w", ErrBusy)
	}
	var cut Underway
	e.Trigger = func(i int) int { return e.Contexts[i].Trigger(0) }
	e.Idle = func(i int) bool {
		u := e.Contexts[i].Underway()
		return u.Sends == 0 && u.Moves == 0 && u.Leases == 0
	}
	e.Cut = func() {
		for _, c := range e.Contexts {
			u := c.Underway()
			cut.Sends, cut.Moves, cut.Served = cut.Sends+u.Sends, cut.Moves+u.Moves, cut.Served+u.Served
			cut.Leases += u.Leases
		}
	}
	e.Parted = func(int) bool { return true }
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

// An Ending is how Shutdown goes, for this package and for layers above.
//
//	Drain ─► what is under way ends ─► Cut ─► peers have taken everything ─► Close ─► every callback has returned
//	         ctx, Config.Linger              the same, and farewellTime            farewellTime, and no callback is left to run
type Ending struct {
	Contexts []*Context
	Drain    func()
	Trigger  func(i int) int  // of the layer above, for a context
	Idle     func(i int) bool // nothing is under way there but what peers do with registered memory
	Cut      func()           // the wait is over: counts what is left, and cancels what it can
	Parted   func(i int) bool // nobody is about to send an answer
	Close    func()
	Closed   func() bool

	Unconfirmed []Unconfirmed // that were not confirmed in the end, by Run

	begun time.Duration
}

// Run returns nil when everything had ended by itself, the cause of ctx, ErrTimeout when Config.Linger has passed, ErrPeerLost
// when only messages to peers that are gone were not confirmed, or ErrBusy when nothing but a callback that does not return is
// left. It is not called inside one.
func (e *Ending) Run(ctx context.Context) error {
	var err error
	if len(e.Contexts) > 0 {
		e.begun = e.now()
	}
	if len(e.Contexts) > 0 && !e.all((*Context).Closing) {
		e.Drain()
		err = e.wait(ctx)
		e.Cut()
		owed := e.sayFarewell(ctx)
		for _, c := range e.Contexts {
			e.Unconfirmed = append(e.Unconfirmed, c.Unconfirmed()...)
		}
		if err == nil && len(e.Unconfirmed) > 0 {
			if err = ErrPeerLost; owed {
				err = e.over(ctx)
			}
		}
	}
	e.Close()
	if len(e.Contexts) > 0 {
		limit := e.now() + farewellTime
		e.drive(func(ran int) bool { // callbacks may post more
			now := e.now()
			if e.all(func(c *Context) bool { return c.Live() == 0 }) && e.over(ctx) == nil {
				limit = now + farewellTime // all that is left is to give back what hundreds of peers had
			}
			return ran == 0 && (e.all((*Context).Closed) || now >= limit)
		})
	}
	if e.all((*Context).Closed) {
		settle(farewellTime, e.Closed) // callbacks that other goroutines run
	}
	switch {
	case err != nil || e.Closed():
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return ErrBusy
}

// wait drives until nothing is under way.
func (e *Ending) wait(ctx context.Context) (err error) {
	class := e.Contexts[0].class
	reached, lull := uint64(0), e.begun
	e.drive(func(int) bool {
		idle, n := e.idle()
		now := e.now()
		if !idle || n != reached {
			reached, lull = n, now
		}
		switch {
		case idle && (class.Regions() == 0 || now-lull >= lullTime || ctx.Err() != nil):
			return true
		}
		err = e.over(ctx)
		return err != nil
	})
	return err
}

// over is why nothing is waited for any more; nil: there is time.
func (e *Ending) over(ctx context.Context) error {
	linger := e.Contexts[0].class.cfg.Linger
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if _, bounded := ctx.Deadline(); !bounded && e.now()-e.begun >= linger {
		return WithText(ErrTimeout, fmt.Sprintf("not everything ended within Config.Linger of %v", max(linger, 0)))
	}
	return nil
}

// sayFarewell drives until peers have confirmed what was sent to them, and reports whether messages to living ones are left that they
// have not: then the time is over, and farewellTime after it.
func (e *Ending) sayFarewell(ctx context.Context) (owed bool) {
	limit := e.now() + farewellTime
	e.drive(func(ran int) bool {
		parted, messages := e.confirmed()
		now := e.now()
		if owed = messages > 0; owed && e.over(ctx) == nil {
			limit = now + farewellTime
		}
		return ran == 0 && parted || now >= limit
	})
	return owed
}

// idle reports whether nothing is under way, and how often peers have reached registered memory.
func (e *Ending) idle() (idle bool, reached uint64) {
	idle = true
	for i, c := range e.Contexts {
		u := c.Underway()
		idle = idle && u.Served == 0 && (c.Closing() || e.Idle(i))
		reached += u.Reached
	}
	return idle, reached
}

// confirmed reports whether peers have everything, and how many messages they have not confirmed. Those of every context are asked,
// however long others take.
func (e *Ending) confirmed() (parted bool, messages int) {
	parted = true
	for i, c := range e.Contexts {
		if c.Closing() {
			continue
		}
		last := e.Parted(i)
		if last && c.ep.underway().Sends > 0 {
			parted = false
			continue
		}
		peers, n := c.ep.confirm(last)
		if parted = parted && last && peers == 0; last {
			messages += n
		}
	}
	return parted, messages
}

// all reports whether f reports true for every context.
func (e *Ending) all(f func(*Context) bool) bool {
	return !slices.ContainsFunc(e.Contexts, func(c *Context) bool { return !f(c) })
}

func (e *Ending) inside() bool { return slices.ContainsFunc(e.Contexts, (*Context).Inside) }

func (e *Ending) now() time.Duration { return e.Contexts[0].Now() }

// drive turns all contexts over until over, which is told how many callbacks the last turn has run, reports true.
func (e *Ending) drive(over func(ran int) bool) {
	for round := 0; ; round++ {
		ran := 0
		for i, c := range e.Contexts {
			_ = c.Progress(0)
			ran += e.Trigger(i)
		}
		if over(ran) {
			return
		}
		if ran == 0 {
			_ = e.Contexts[round%len(e.Contexts)].Progress(endingStep)
		}
	}
}
