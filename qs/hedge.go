package qs

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// Hedge returns a client's interceptor that also calls a second address when the first has not
// answered after delay, or fails meanwhile. With a delay of zero both are called at once. The first
// answer wins, even a handler's error, and the other attempt is abandoned: its request is
// destroyed, or the ctx of its handler ends.
//
// It applies only to methods that are Idempotent and lend nothing, and to Peers that have a second
// address that does not fail. Put it into Config.ClientInterceptors, or give it to Define, behind
// Retry, which then repeats what neither address has answered.
func Hedge(delay time.Duration) Interceptor {
	return func(ctx context.Context, c *Call, next func(context.Context) error) error {
		if !c.Idempotent || c.lends || c.Peer.p == nil || c.Peer.p.single != nil {
			return next(ctx)
		}
		h := &hedgedCall{c: c, peer: c.Peer.p, ctx: ctx, next: next}
		return h.run(delay)
	}
}

// A hedgedCall is one call under Hedge, which may make a second attempt.
type hedgedCall struct {
	c    *Call
	peer *peer
	ctx  context.Context
	next func(context.Context) error

	mu         sync.Mutex         // guards the fields below
	firstEnded bool               // no second attempt begins any more
	secondDone chan struct{}      // closed when the second attempt has ended; nil until it begins
	stop       context.CancelFunc // cancels the second attempt
	err        error              // error of the second attempt
	panic      any                // panic of the second attempt
}

// run makes the first attempt, and a second one after delay.
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
	_ = n.awaitDone(context.Background(), h.peer.i, second) // soon: it was canceled, or ctx is done
	if h.panic != nil {
		panic(h.panic)
	}
	if isAnswered(err) || !isAnswered(h.err) && FateOf(err) != NotRun {
		return err
	}
	return h.err
}

// isAnswered reports whether a call that ended with err was answered, by an output or by the error
// of a handler. ErrCanceled and ErrTimeout are no answers: when this side has ended an attempt, its
// handler may report no more than that.
func isAnswered(err error) bool {
	if err == nil {
		return true
	}
	r, ok := hg.RemoteOf(err)
	return ok && !r.Refused && FateOf(err) == Ran && !errors.Is(err, ErrCanceled) &&
		!errors.Is(err, ErrTimeout)
}

// endFirst marks the first attempt as ended, and cancels the second if the first was answered. It
// returns a channel that is closed when the second has ended, or nil if there is none.
func (h *hedgedCall) endFirst(answered bool) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.firstEnded = true
	if answered && h.stop != nil {
		h.stop()
	}
	return h.secondDone
}

// runSecond makes the second attempt. If it is answered, it cancels the first with stop.
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
		if h.panic = recover(); h.panic != nil { // run raises it again, on the caller's goroutine
			stop()
		}
		close(second)
		h.peer.n.contexts[h.peer.i].Wake()
	}()
	h.err = errNextLate // stands if next panics or ends the goroutine
	h.err = h.next(ctx)
	if isAnswered(h.err) {
		stop()
	}
}
