package qs

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// Hedge returns a client interceptor that also calls a second address if the first has not
// responded after delay or fails before that. With a delay of zero it calls both at once. It
// returns the first response, even if that is an error of a handler, and abandons the other
// attempt: its request is discarded, or the context of its handler is canceled.
//
// Hedge applies only to Idempotent methods without Sources and Sinks, and to Peers with a second
// healthy address. Add it to Config.ClientInterceptors, or to the options of Define, after Retry.
// Retry then repeats the call if neither address responds.
func Hedge(delay time.Duration) Interceptor {
	return func(ctx context.Context, c *Call, next func(context.Context) error) error {
		if !c.Idempotent || c.lends || c.Peer.p == nil || c.Peer.p.single != nil {
			return next(ctx)
		}
		h := &hedgedCall{c: c, peer: c.Peer.p, ctx: ctx, next: next}
		return h.run(delay)
	}
}

// A hedgedCall is the state of one call of the interceptor returned by Hedge.
type hedgedCall struct {
	c    *Call
	peer *peer
	ctx  context.Context
	next func(context.Context) error

	mu         sync.Mutex         // guards the fields below
	firstEnded bool               // the first attempt has completed, so no second one may start
	secondDone chan struct{}      // closed when the second attempt has completed; nil until it starts
	stop       context.CancelFunc // cancels the second attempt
	err        error              // error of the second attempt
	panic      any                // value of a panic in the second attempt
}

// run makes the first attempt and, after delay, a second one.
func (h *hedgedCall) run(delay time.Duration) error {
	n := h.peer.n
	ctx, stop := context.WithCancel(h.ctx)
	defer stop()
	defer n.runAfter(h.ctx, delay, func() { h.runSecond(stop) })()
	err := h.next(ctx)
	second := h.endFirst(isAnswered(err))
	if second == nil {
		return err
	}
	_ = n.awaitDone(context.Background(), h.peer.i, second) // returns soon, because it was canceled or ctx is done
	if h.panic != nil {
		panic(h.panic)
	}
	if isAnswered(err) || !isAnswered(h.err) && FateOf(err) != NotRun {
		return err
	}
	return h.err
}

// isAnswered reports whether a call that returned err has received a response: an output or the
// error of a handler. ErrCanceled and ErrTimeout do not count, because a handler returns them when
// this side canceled the attempt.
func isAnswered(err error) bool {
	if err == nil {
		return true
	}
	r, ok := hg.RemoteOf(err)
	return ok && !r.Refused && FateOf(err) == Ran && !errors.Is(err, ErrCanceled) &&
		!errors.Is(err, ErrTimeout)
}

// endFirst marks the first attempt as completed and, if it was answered, cancels the second. It
// returns a channel that is closed when the second has completed, or nil if there is no second.
func (h *hedgedCall) endFirst(answered bool) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.firstEnded = true
	if answered && h.stop != nil {
		h.stop()
	}
	return h.secondDone
}

// runSecond makes the second attempt. If that is answered, it cancels the first by calling stop.
func (h *hedgedCall) runSecond(stop func()) {
	h.mu.Lock()
	if h.firstEnded || h.ctx.Err() != nil || !h.c.Peer.hasOtherBackend(h.c) {
		h.mu.Unlock()
		return
	}
	ctx, stopThis := context.WithCancel(h.ctx)
	defer stopThis()
	second := make(chan struct{})
	h.secondDone, h.stop = second, stopThis
	h.mu.Unlock()
	defer func() {
		if h.panic = recover(); h.panic != nil { // run re-raises the panic in the caller's goroutine
			stop()
		}
		close(second)
		h.peer.n.contexts[h.peer.i].Wake()
	}()
	h.err = errNextLate // remains if next panics or calls runtime.Goexit
	h.err = h.next(ctx)
	if isAnswered(h.err) {
		stop()
	}
}
