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

// A hedgedCall is a call that may be made twice.
type hedgedCall struct {
	c    *Call
	peer *peer
	ctx  context.Context
	next func(context.Context) error

	mu         sync.Mutex    // guards the fields below
	firstEnded bool          // the first has ended: no second begins
	secondDone chan struct{} // closed when the second has ended; nil when it has not begun
	stop       context.CancelFunc
	err        error // of the second
	panic      any   // the second has panicked
}

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
	_ = n.awaitDone(context.Background(), h.peer.i, second) // it ends soon: it was stopped, or the call ends with ctx
	if h.panic != nil {
		panic(h.panic)
	}
	if isAnswered(err) || !isAnswered(h.err) && FateOf(err) != NotRun {
		return err
	}
	return h.err
}

// isAnswered reports whether err is the end of a call that was answered: by output, or by a handler. What came when this side had ended
// the call is no answer: the handler may have said no more than that.
func isAnswered(err error) bool {
	if err == nil {
		return true
	}
	r, ok := hg.RemoteOf(err)
	return ok && !r.Refused && FateOf(err) == Ran && !errors.Is(err, ErrCanceled) && !errors.Is(err, ErrTimeout)
}

// endFirst is the end of the first attempt, and of the second too if that is not needed. It returns what is closed at the end of the second,
// nil if there is none.
func (h *hedgedCall) endFirst(answered bool) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.firstEnded = true
	if answered && h.stop != nil {
		h.stop()
	}
	return h.secondDone
}

// runSecond makes the second attempt, which stops the first when it is answered.
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
		if h.panic = recover(); h.panic != nil { // run panics with it, where the call was made
			stop()
		}
		close(second)
		h.peer.n.contexts[h.peer.i].Wake()
	}()
	h.err = errNextLate // if next does not return
	h.err = h.next(ctx)
	if isAnswered(h.err) {
		stop()
	}
}
