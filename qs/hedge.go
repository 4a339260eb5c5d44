package qs

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// Hedge returns a client's interceptor that makes a call at a second address when the first has not answered after delay, and when it
// fails meanwhile. The first answer counts, an error that a handler gave among them; the other attempt is abandoned: its request is
// destroyed, or the ctx of its handler ends. It is for methods that are Idempotent, and lend nothing; others it leaves alone, and calls
// to a Peer that has no other address that does well. Put it into Config.ClientInterceptors, or give it to Define: behind Retry, which then
// repeats what neither address has answered.
func Hedge(delay time.Duration) Interceptor {
	return func(ctx context.Context, c *Call, next func(context.Context) error) error {
		if !c.Idempotent || c.lends || c.Peer.p == nil || c.Peer.p.only != nil {
			return next(ctx)
		}
		h := &hedge{c: c, home: c.Peer.p, ctx: ctx, next: next}
		return h.run(delay)
	}
}

// A hedge is a call that may be made twice.
type hedge struct {
	c    *Call
	home *peer
	ctx  context.Context
	next func(context.Context) error

	mu     sync.Mutex    // guards the fields below
	over   bool          // the first has ended: no second begins
	second chan struct{} // closed when the second has ended; nil when it has not begun
	stop   context.CancelFunc
	err    error // of the second
	panic  any   // the second has panicked
}

func (h *hedge) run(delay time.Duration) error {
	n := h.home.n
	ctx, stop := context.WithCancel(h.ctx)
	defer stop()
	defer n.after(h.ctx, delay, func() { h.beside(stop) })()
	err := h.next(ctx)
	second := h.end(answers(err))
	if second == nil {
		return err
	}
	_ = n.await(context.Background(), h.home.i, second) // it ends soon: it was stopped, or the call ends with ctx
	if h.panic != nil {
		panic(h.panic)
	}
	if answers(err) || !answers(h.err) && FateOf(err) != NotRun {
		return err
	}
	return h.err
}

// answers reports whether err is the end of a call that was answered: by output, or by a handler. What came when this side had ended
// the call is no answer: the handler may have said no more than that.
func answers(err error) bool {
	if err == nil {
		return true
	}
	r, ok := hg.RemoteOf(err)
	return ok && !r.Refused && FateOf(err) == Ran && !errors.Is(err, ErrCanceled) && !errors.Is(err, ErrTimeout)
}

// end is the end of the first attempt, and of the second too if that is not needed. It returns what is closed at the end of the second,
// nil if there is none.
func (h *hedge) end(answered bool) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	if answered && h.stop != nil {
		h.stop()
	}
	return h.second
}

// beside makes the second attempt, which stops the first when it is answered.
func (h *hedge) beside(stop func()) {
	h.mu.Lock()
	if h.over || h.ctx.Err() != nil || !h.c.Peer.elsewhere(h.c) {
		h.mu.Unlock()
		return
	}
	ctx, stopThis := context.WithCancel(h.ctx)
	defer stopThis()
	second := make(chan struct{})
	h.second, h.stop = second, stopThis
	h.mu.Unlock()
	defer func() {
		if h.panic = recover(); h.panic != nil { // run panics with it, where the call was made
			stop()
		}
		close(second)
		h.home.n.all[h.home.i].Wake()
	}()
	h.err = errNextLate // if next does not return
	h.err = h.next(ctx)
	if answers(h.err) {
		stop()
	}
}

// after calls f on a goroutine of its own, in the simulator in a coroutine, when d has passed, unless ctx has ended, or stop was called.
func (n *Node) after(ctx context.Context, d time.Duration, f func()) (stop func()) {
	if !n.hctx.NA().Scheduled() {
		t := time.AfterFunc(d, f)
		return func() { t.Stop() }
	}
	ctx, cancel := context.WithCancel(ctx)
	n.spawn(func() {
		if n.sleep(ctx, d) == nil {
			f()
		}
	})
	return cancel
}

// WaitFirst waits for the first of futures that succeeds, returns its index and output, and abandons the others: when First returns they
// have ended. If none succeeds the index is -1, and the error joins those of all. When ctx ends first the error matches the cause of
// that and says that a request may have run, and the calls continue.
func WaitFirst[Out any](ctx context.Context, futures ...*Future[Out]) (i int, out Out, err error) {
	errs := []error{}
	if len(futures) == 0 {
		errs = append(errs, na.WithText(ErrInvalid, "qs: First of no futures"))
	}
	left := make([]*future, len(futures))
	for i, f := range futures {
		left[i] = f.f
	}
	for range futures {
		i, err := anyOf(ctx, left)
		if err != nil {
			return -1, out, &hg.Error{Op: "wait for", RPC: futures[0].f.o.m.name, Fate: MaybeRan, Err: err}
		}
		f := left[i]
		_ = f.wait(ctx) // it has ended
		if left[i] = nil; f.err != nil {
			errs = append(errs, f.err)
			continue
		}
		for j, other := range futures {
			if left[j] != nil {
				other.Abandon()
				_ = other.f.wait(context.Background())
			}
		}
		return i, *futures[i].out, nil
	}
	return -1, out, errors.Join(errs...)
}

// anyOf waits for one of futures, some of which are nil, and returns its index.
func anyOf(ctx context.Context, futures []*future) (int, error) {
	var some *Node
	cases := []reflect.SelectCase{{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(ctx.Done())}}
	for i, f := range futures {
		var done reflect.Value
		if f != nil {
			if f.over() {
				return i, nil
			}
			some, done = f.o.home.n, reflect.ValueOf(f.done)
		}
		cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: done})
	}
	if !some.hctx.NA().Scheduled() {
		if i, _, _ := reflect.Select(cases); i > 0 {
			return i - 1, nil
		}
		return -1, context.Cause(ctx)
	}
	ended := -1
	err := some.hctx.Wait(ctx, func() bool {
		for i, f := range futures {
			if f != nil && f.over() {
				ended = i
				return true
			}
		}
		return false
	})
	if ended >= 0 {
		return ended, nil
	}
	return -1, err
}

// CallAll calls m at all peers at once, with the same input, and waits until all calls have ended: by ctx, too. outs[i] and errs[i] are
// what Method.Call would have returned for peers[i], and FateOf(errs[i]) says whether its request ran; errors.Join(errs...) is nil if
// all have succeeded. A method may lend memory or a file to all of them; not a Reader, nor a Sink.
func CallAll[In, Out any](ctx context.Context, peers []Peer, m *Method[In, Out], in In) (outs []Out, errs []error) {
	futures := make([]*Future[Out], len(peers))
	for i, to := range peers {
		futures[i] = m.Go(ctx, to, in)
	}
	outs, errs = make([]Out, len(peers)), make([]error, len(peers))
	for i, f := range futures {
		outs[i], errs[i] = f.Wait(context.Background())
	}
	return outs, errs
}
