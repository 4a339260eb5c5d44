package hg

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// maxOpen limits the number of entries in ShutdownError.Open.
const maxOpen = 32

// detachedGrace is how long Shutdown waits, after it has canceled the contexts of handlers, before
// it responds to detached requests that have not been answered.
const detachedGrace = 200 * time.Millisecond

// closeGrace is how long a successful Shutdown waits for goroutines to close the handles of
// completed calls.
const closeGrace = 200 * time.Millisecond

// A ShutdownError is returned by Shutdown if it canceled work or if the program left objects open.
// It counts both.
type ShutdownError struct {
	Calls     int // number of calls that completed with ErrClosed
	Responses int // number of responses that had not been sent
	// Streams is the number of streams of calls, handlers, and responses that had not ended or had
	// unsent data.
	Streams int
	// Transfers is the number of gets and puts in progress, both those of this process and those of
	// peers in its memory. A large get or put counts as several chunks.
	Transfers int
	Leases    int   // number of lent inputs and outputs that peers had not returned
	Handlers  int   // number of requests whose handlers were active when Shutdown stopped waiting or have not returned
	Handles   int   // number of handles that were not closed
	Regions   int64 // number of registered memory regions, which are bulk handles that were not closed
	Callbacks int64 // number of callbacks that have not returned
	// Unconfirmed is the number of one-way calls and responses that were sent but not acknowledged
	// by their peers. It includes one-way calls to peers that were lost at any time, and every
	// message that was unacknowledged at the end.
	Unconfirmed int
	// Open describes the handlers and handles counted above and the peers of the unconfirmed
	// messages. It contains the first 32 descriptions, handlers and handles first.
	Open []string
	// Err is the cause of the context, ErrTimeout if na.Config.Linger or qs.Config.ShutdownTimeout
	// has expired, ErrPeerLost if only acknowledgements from lost peers are missing, or na.ErrBusy if
	// all operations completed by themselves.
	Err error
}

// Error returns a text such as "hg: shutdown: 2 calls, 1 handler left (handler of math/sum has not
// answered): deadline exceeded".
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
		s += " (" + strings.Join(countEqual(e.Open), "; ") + ")"
	}
	return s + ": " + e.Err.Error()
}

// countEqual returns the distinct texts of ShutdownError.Open in their order, each followed by how
// often it occurs if that is more than once. If texts has maxOpen entries, there may be more objects
// than texts, and the numbers are left out.
func countEqual(texts []string) (counted []string) {
	count := map[string]int{}
	for _, text := range texts {
		if count[text]++; count[text] == 1 {
			counted = append(counted, text)
		}
	}
	for i, text := range counted {
		if n := count[text]; n > 1 && len(texts) < maxOpen {
			counted[i] = fmt.Sprintf("%s (%d times)", text, n)
		}
	}
	return counted
}

// Unwrap returns Err.
func (e *ShutdownError) Unwrap() error { return e.Err }

// addOpen appends text to Open, unless Open already has maxOpen entries.
func (e *ShutdownError) addOpen(text string) {
	if len(e.Open) < maxOpen {
		e.Open = append(e.Open, text)
	}
}

func (e *ShutdownError) isEmpty() bool {
	return e.Calls+e.Responses+e.Streams+e.Transfers+e.Leases+e.Handlers+e.Handles+e.Unconfirmed == 0 && e.Regions+e.Callbacks == 0
}

// Shutdown gracefully shuts down c. It drives the contexts of c, which other goroutines may drive as
// well. It proceeds as follows:
//
//  1. New peers are not accepted. Requests whose handlers have not begun are refused, and their
//     origins receive ErrDraining and NotRun. Forward fails with ErrClosed once no handler is
//     active; until then it succeeds, because handlers may need other processes to complete. Bulk
//     transfers may still be started.
//  2. Shutdown waits for handlers, calls, and transfers in flight, and for peers that use
//     registered memory. It stops waiting when nothing is left, when ctx is done or, if ctx has no
//     deadline, when na.Config.Linger expires.
//  3. The remaining work is canceled. Calls complete with ErrClosed, and the contexts of handlers
//     are canceled with a cause that matches ErrClosed and names the limit. If such a handler then
//     returns an error, the response is ErrAborted and begins with that cause, unless the error has
//     a code of 64 or above or is marked by Refuse.
//     Detached requests that are not answered within 0.2 s are answered with na.ErrNoResponse.
//  4. Queued messages are sent, including the last responses, and peers acknowledge them. Shutdown
//     waits for acknowledgements of messages until the end of step 2 and for another 0.4 s, and for
//     everything else at most 0.4 s. It gives up on a peer that is silent for
//     na.Config.PeerTimeout or, over udp, that does not acknowledge eight transmissions of a
//     packet.
//  5. c is closed, and every callback runs.
//
// Shutdown returns nil if all work completed by itself, peers have acknowledged it, and all handles
// and memory regions are closed. Otherwise it returns a *ShutdownError. It returns within 1 s after
// ctx is done or Linger expires, even if peers are silent, unless a callback that it runs does not
// return. If c was already closed, only step 5 is performed. Within a callback or handler of c,
// Shutdown returns an error at once, since it would otherwise wait for itself.
func (c *Class) Shutdown(ctx context.Context) error {
	c.mu.Lock()
	contexts := c.contexts
	c.mu.Unlock()
	e := na.Shutdown{Drain: c.na.Drain, Close: func() { _ = c.Close() }, Closed: c.na.Closed}
	return shutdown(ctx, contexts, e, c.na.Regions)
}

// Shutdown shuts down c alone, in the same way as [Class.Shutdown]. Other contexts of the class
// continue. Since memory belongs to the class, ShutdownError.Regions is 0.
func (c *Context) Shutdown(ctx context.Context) error {
	e := na.Shutdown{Drain: c.nctx.Drain, Close: c.Close, Closed: c.nctx.Closed}
	return shutdown(ctx, []*Context{c}, e, func() int64 { return 0 })
}

// shutdownCause returns err, the error of a shutdown with context ctx, in a form that names
// Config.ShutdownTimeout of package qs if that ended ctx.
func shutdownCause(ctx context.Context, err error) error {
	if d, ok := ctx.Value(hghook.ShutdownTimeoutKey{}).(time.Duration); ok && err == context.DeadlineExceeded {
		return na.WithText(ErrTimeout, fmt.Sprintf("not complete within %v (qs.Config.ShutdownTimeout)", d))
	}
	return err
}

// cutOffError returns the cause with which a shutdown with context ctx cancels the contexts of
// handlers. err ended the wait for them, and is nil if none is active.
func cutOffError(ctx context.Context, err error) error {
	if err == nil {
		return errClosed
	}
	cause := shutdownCause(ctx, err)
	text := cause.Error()
	// Callers must not take the text of a context's error for that of their own deadline.
	if cause == err && errors.Is(err, context.Cause(ctx)) {
		text = "the context of Shutdown ended: " + text
	}
	return na.WithText(ErrClosed, "interrupted by the shutdown of the process: "+text)
}

// closeReason returns the cause with which the contexts of handlers are canceled when c is shut
// down or closed.
func (c *Context) closeReason() error {
	if why := c.cutOff.Load(); why != nil {
		return *why
	}
	return errClosed
}

// isServing reports whether any context of the class has active requests.
func (c *Class) isServing() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.contexts, func(hctx *Context) bool { return hctx.admission.activeCount() > 0 })
}

func shutdown(ctx context.Context, contexts []*Context, e na.Shutdown, regions func() int64) error {
	for _, hctx := range contexts {
		if hctx.nctx.Upper().Inside() {
			return fmt.Errorf("hg: shutdown: called from a callback; use Close: %w", na.ErrBusy)
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
	patience := time.Duration(0) // time by Now at which unanswered detached requests are answered
	e.CancelRest = func(err error) {
		patience = contexts[0].Now() + detachedGrace
		// Set cutOff for all contexts first: a handler may end because one of its calls is
		// canceled.
		why := cutOffError(ctx, err)
		for _, hctx := range contexts {
			hctx.cutOff.CompareAndSwap(nil, &why) // keeps the reason of a concurrent Shutdown
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
	if left.Err = shutdownCause(ctx, e.Run(ctx)); left.Err == nil {
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

// awaitOpen waits for other goroutines to close the handles of completed calls and to free the
// memory that they lent. It is called after a shutdown that canceled nothing, and waits at most
// closeGrace. In the simulator it does not wait, because no other goroutine would run during the
// wait.
func awaitOpen(contexts []*Context, regions func() int64) {
	if len(contexts) == 0 || contexts[0].nctx.Scheduled() {
		return
	}
	open := func() bool {
		return regions() > 0 || slices.ContainsFunc(contexts, func(c *Context) bool { return c.handles.Load() > 0 })
	}
	// Use wall time, because c's clock may stand still in a simulation.
	patience, stop := context.WithTimeout(context.Background(), closeGrace)
	defer stop()
	for open() && patience.Err() == nil {
		runtime.Gosched()
	}
}

// isIdle reports whether nothing is in flight. Notifications of lost sessions are not counted. Data
// that a handler has written to a stream is in flight until it has been sent.
func (c *Context) isIdle() bool {
	for c.starting.Load() > 0 { // a call begun before Drain is counted by Live once it has started
		runtime.Gosched()
	}
	return c.nctx.Live()-c.nctx.Upper().News() <= 0 && !c.nctx.Upper().Arrived() && c.admission.activeCount() == 0 && c.admission.waiting.Load() == 0 &&
		c.nctx.Upper().Underway().Streams == 0
}

// endRest counts in left the work that has not completed, and cancels calls and the contexts of
// handlers.
func (c *Context) endRest(left *ShutdownError) {
	u := c.nctx.Upper().Underway()
	left.Transfers += u.Moves + u.Served
	left.Leases += u.Leases
	left.Streams += c.nctx.Stats().Streams
	for _, o := range c.allOpen() {
		o.cancelForShutdown(left)
	}
}

// countOpen counts in left the objects that are still open and the callbacks that have not returned
// at the end of a shutdown.
func (c *Context) countOpen(left *ShutdownError) {
	if !c.nctx.Closed() {
		left.Callbacks += c.nctx.Live()
	}
	for _, o := range c.allOpen() {
		o.countOpen(left)
	}
}
