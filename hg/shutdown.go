package hg

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// maxOpen bounds the names in a ShutdownError.
const maxOpen = 32

// detachedGrace is how long handlers whose contexts have ended may take to answer detached requests, before Shutdown does.
const detachedGrace = 200 * time.Millisecond

// closeGrace is how long those who made calls that have ended may take to close their handles.
const closeGrace = 200 * time.Millisecond

// A ShutdownError says what a Shutdown has cut off, and what the program has left open.
type ShutdownError struct {
	Calls     int   // that were ended, with ErrClosed
	Responses int   // that had not left
	Streams   int   // of these calls, handlers and responses that had not come to their end, or of which not everything had left
	Transfers int   // gets and puts of this process, and of peers in its memory: pieces, for large ones
	Leases    int   // bodies of calls that peers had not given back
	Handlers  int   // requests whose handlers were at work when the wait was over, or have not ended
	Handles   int   // of calls, not closed
	Regions   int64 // registered memory: bulk handles that are not closed
	Callbacks int64 // that have not returned
	// Unconfirmed are one-way calls and responses that left, and that their peers are not known to have received: one-way calls to
	// peers that were lost at any time, and whatever was not confirmed in the end.
	Unconfirmed int
	// Open says which handlers and handles these are, and of which peers the messages: the first 32, handlers and handles first.
	Open []string
	// Err is the cause of the context, ErrTimeout when na.Config.Linger has passed, ErrPeerLost when all that is missing is what
	// peers that were lost have not confirmed, or na.ErrBusy when all that was under way ended by itself.
	Err error
}

// Error returns for example
// "hg: shutdown: 2 calls, 1 handler left (handler of math/sum has not answered): timed out".
func (e *ShutdownError) Error() string {
	var left []string
	for _, f := range []struct {
		n    int64
		what string
	}{{int64(e.Calls), "call"}, {int64(e.Responses), "response"}, {int64(e.Streams), "stream"}, {int64(e.Transfers), "transfer"},
		{int64(e.Leases), "lease"}, {int64(e.Handlers), "handler"}, {int64(e.Handles), "handle"},
		{e.Regions, "region"}, {e.Callbacks, "callback"}, {int64(e.Unconfirmed), "unconfirmed message"}} {
		switch {
		case f.n == 1:
			left = append(left, "1 "+f.what)
		case f.n > 1:
			left = append(left, fmt.Sprintf("%d %ss", f.n, f.what))
		}
	}
	s := "hg: shutdown"
	if len(left) > 0 {
		s += ": " + strings.Join(left, ", ") + " left"
	}
	if len(e.Open) > 0 {
		s += " (" + strings.Join(e.Open, "; ") + ")"
	}
	return s + ": " + e.Err.Error()
}

// Unwrap returns Err.
func (e *ShutdownError) Unwrap() error { return e.Err }

// addOpen adds what is open.
func (e *ShutdownError) addOpen(text string) {
	if len(e.Open) < maxOpen {
		e.Open = append(e.Open, text)
	}
}

func (e *ShutdownError) isEmpty() bool {
	return e.Calls+e.Responses+e.Streams+e.Transfers+e.Leases+e.Handlers+e.Handles+e.Unconfirmed == 0 && e.Regions+e.Callbacks == 0
}

// Shutdown ends c in good order and drives its contexts meanwhile; others may drive them too.
//
//  1. No peer that comes now is let in. Requests whose handlers have not begun are refused: their origins get ErrDraining and
//     NotRun. Forward fails with ErrClosed once no handler is left that has begun: handlers may need other processes to end. Bulk
//     transfers may still be started.
//  2. Handlers, calls and transfers that are under way may end, and so may what peers do with registered memory: until ctx
//     ends, na.Config.Linger has passed if ctx has no deadline, or nothing is left.
//  3. The rest is canceled: calls end with ErrClosed, and so do the contexts of handlers; an error that one of these then returns
//     is answered ErrAborted unless it has a code from 64 on or is marked by Refuse. Detached requests that nobody answers within
//     0.2 s are answered na.ErrNoResponse.
//  4. What is queued leaves, answers to the last among it, and peers confirm that they have it. A message that a peer has not
//     confirmed is waited for as long as 2 says, and 0.4 s more; the rest for 0.4 s at the most. A peer that is silent for
//     na.Config.PeerTimeout is given up, and over udp also one that leaves eight repetitions of a packet unanswered.
//  5. c is closed, and every callback runs.
//
// It returns nil when everything had ended by itself, peers have it, and every handle and all memory is given back, else a *ShutdownError. It
// ends within 1 s of ctx or of Linger, whoever is silent, unless a callback that it runs itself does not return. When c was
// closed before, only 5 is left. Inside a callback or handler of c Shutdown returns an error at once: it could never end.
func (c *Class) Shutdown(ctx context.Context) error {
	c.mu.Lock()
	contexts := c.contexts
	c.mu.Unlock()
	e := na.Shutdown{Drain: c.na.Drain, Close: func() { _ = c.Close() }, Closed: c.na.Closed}
	return shutdown(ctx, contexts, e, c.na.Regions)
}

// Shutdown is Shutdown of c alone; other contexts of the class go on. Memory is the class's, so Regions is 0.
func (c *Context) Shutdown(ctx context.Context) error {
	e := na.Shutdown{Drain: c.nctx.Drain, Close: c.Close, Closed: c.nctx.Closed}
	return shutdown(ctx, []*Context{c}, e, func() int64 { return 0 })
}

// isServing reports whether there is a handler that has begun.
func (c *Class) isServing() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.contexts, func(hctx *Context) bool { return hctx.admission.activeCount() > 0 })
}

func shutdown(ctx context.Context, contexts []*Context, e na.Shutdown, regions func() int64) error {
	for _, hctx := range contexts {
		if hctx.nctx.Upper().Inside() {
			return fmt.Errorf("hg: shutdown: called inside a callback, which it would wait for; use Close: %w", na.ErrBusy)
		}
	}
	left := &ShutdownError{}
	drain := e.Drain
	e.Drain = func() {
		drain()
		for _, hctx := range contexts {
			hctx.refuseWaiting()
		}
	}
	e.Trigger = func(i int) int { return contexts[i].Trigger(0) }
	e.Idle = func(i int) bool { return contexts[i].isIdle() }
	patience := time.Duration(0) // for detached requests
	e.CancelRest = func() {
		patience = contexts[0].Now() + detachedGrace
		for _, hctx := range contexts { // before anything ends: a handler may end because a call of it does
			hctx.cutOff.Store(true)
		}
		for _, hctx := range contexts {
			hctx.endRest(left)
		}
	}
	e.NoMoreReplies = func(i int) bool {
		if c := contexts[i]; contexts[0].Now() >= patience {
			for _, o := range c.allOpen() {
				o.answerDetached()
			}
		}
		return contexts[i].admission.activeCount() == 0
	}
	for _, hctx := range contexts {
		e.Contexts = append(e.Contexts, hctx.nctx)
	}
	if left.Err = e.Run(ctx); left.Err == nil {
		awaitOpen(contexts, regions)
	}
	left.Regions = regions()
	for _, hctx := range contexts {
		hctx.countOpen(left)
	}
	for _, u := range e.Unconfirmed {
		left.Unconfirmed += u.Messages
		peer := u.Peer.Label()
		if u.Peer.IsZero() {
			peer = "other peers"
		}
		left.addOpen(fmt.Sprintf("%d not confirmed by %s", u.Messages, peer))
	}
	switch {
	case left.Err == nil && left.isEmpty():
		return nil
	case left.Err == nil:
		left.Err = na.ErrBusy
	}
	return left
}

// awaitOpen waits, when nothing was cut off, until goroutines whose calls have ended have closed their handles and given back what they
// lent: for openTime at the most. In the simulator nobody does while this goroutine waits.
func awaitOpen(contexts []*Context, regions func() int64) {
	if len(contexts) == 0 || contexts[0].nctx.Scheduled() {
		return
	}
	open := func() bool {
		return regions() > 0 || slices.ContainsFunc(contexts, func(c *Context) bool { return c.handles.Load() > 0 })
	}
	patience, stop := context.WithTimeout(context.Background(), closeGrace) // the clock of c stands still in a world that nobody drives
	defer stop()
	for open() && patience.Err() == nil {
		runtime.Gosched()
	}
}

// isIdle reports whether nothing is under way but the news of sessions that have ended. What a handler wrote to a stream before it
// returned is, until it has left.
func (c *Context) isIdle() bool {
	for c.starting.Load() > 0 { // a call that has seen no Drain; once it has begun it counts in Live
		runtime.Gosched()
	}
	return c.nctx.Live()-c.nctx.Upper().News() <= 0 && !c.nctx.Upper().Arrived() && c.admission.activeCount() == 0 && c.admission.waiting.Load() == 0 &&
		c.nctx.Upper().Underway().Streams == 0
}

// endRest counts what has not ended, and ends calls, detached requests and the contexts of handlers.
func (c *Context) endRest(left *ShutdownError) {
	u := c.nctx.Upper().Underway()
	left.Transfers += u.Moves + u.Served
	left.Leases += u.Leases
	left.Streams += c.nctx.Stats().Streams
	for _, o := range c.allOpen() {
		o.cancelForShutdown(left)
	}
}

// countOpen counts what is open in the end.
func (c *Context) countOpen(left *ShutdownError) {
	if !c.nctx.Closed() {
		left.Callbacks += c.nctx.Live()
	}
	for _, o := range c.allOpen() {
		o.countOpen(left)
	}
}
