package qs

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A Future is a call that Go has begun. Its methods are safe for concurrent use, and may be called
// more than once. It need not be waited for: the call ends by itself, with its context or with the
// node.
//
//	                the call here   at the server
//	Abandon         ends now        the request is destroyed, or the ctx of its handler is canceled
//	Cancel          ends now        the handler goes on: nothing is sent
//	Withdraw        ends if the server returns the request, which then certainly did not run
type Future[Out any] struct {
	f   *futureCall
	out *Out
}

// A futureCall is a Future without its types.
type futureCall struct {
	o    *outgoingCall
	ctx  context.Context // the caller's context
	done chan struct{}   // closed when the call has ended
	err  error           // the error of the call; valid when done is closed
	// panic of the program's code in the call, which Wait raises again; valid when done is closed
	panic       any
	cancel      context.CancelFunc
	noGoroutine bool // the call is an openCall, so that waiting drives the node
}

// Go begins a call and returns without waiting: Call on a goroutine of its own; in the simulator,
// in a coroutine. ctx is that of the whole call. What in lends belongs to the call until it has
// ended. A panic of the program's code in the call, in an encoder or an interceptor, is one of
// Wait, WaitFirst and CallAll; if that code ends the goroutine the error matches ErrInvalid.
func (m *Method[In, Out]) Go(ctx context.Context, to Peer, in In) *Future[Out] {
	k := m.begin(to, in)
	return &Future[Out]{begin(ctx, &k.outgoingCall), &k.out}
}

// begin starts the call o. A streaming call without interceptors may last for days: it runs as an
// openCall, which needs no goroutine. Other calls get a goroutine each. A call to the zero Peer fails
// at once, in run.
func begin(ctx context.Context, o *outgoingCall) *futureCall {
	f := &futureCall{o: o, ctx: ctx, done: make(chan struct{})}
	ctx, f.cancel = context.WithCancel(ctx)
	switch {
	case o.home == nil:
		f.run(ctx)
	case o.needsNoGoroutine():
		f.noGoroutine = true
		k := &openCall{f: f}
		k.begin(ctx)
	default:
		o.home.n.spawn(func() { f.run(ctx) })
	}
	return f
}

// run makes the call and waits for its end.
func (f *futureCall) run(ctx context.Context) {
	returned := false
	defer func() { f.onEnd(ctx, returned, recover()) }()
	f.err = hghook.EndedBy(f.ctx, f.o.run(ctx)) // f.ctx may be done before ctx, which is derived from it
	returned = true
}

// onEnd completes the call. returned is false if the program's code panicked, with panicked, or
// ended the goroutine.
func (f *futureCall) onEnd(ctx context.Context, returned bool, panicked any) {
	o := f.o
	if !returned {
		why := "an interceptor or codec called runtime.Goexit"
		if f.panic = panicked; panicked != nil {
			why = fmt.Sprintf("an interceptor or codec panicked: %v", panicked)
		}
		f.err = o.withFate(ctx, &o.top, o.m.name,
			&hg.Error{Op: "forward", RPC: o.m.name, Fate: NotRun, Err: na.WithText(ErrInvalid, why)})
	}
	f.cancel()
	close(f.done)
	if o.streams != nil {
		o.streams.endCall(f.err)
	}
	if p := o.home; p != nil {
		p.n.contexts[p.i].Wake()
	}
}

// Done is closed when the call has ended. A coroutine of the simulator does not wait for it: Wait
// does.
func (f *Future[Out]) Done() <-chan struct{} { return f.f.done }

// Wait blocks until the call has ended, and returns what Call would have returned. When ctx ends
// first the call goes on, and the error matches the cause of ctx and says that the request may have
// run.
func (f *Future[Out]) Wait(ctx context.Context) (Out, error) {
	var none Out
	if err := f.f.wait(ctx); err != nil {
		return none, err
	}
	return *f.out, f.f.err
}

// wait returns nil when the call has ended. It raises the panic of the call, if there was one.
func (f *futureCall) wait(ctx context.Context) error {
	err := f.waitEnd(ctx)
	if err == nil && f.panic != nil {
		panic(f.panic)
	}
	return err
}

// waitEnd returns nil when the call has ended. Unlike wait it never panics.
func (f *futureCall) waitEnd(ctx context.Context) error {
	if f.isOver() {
		return nil
	}
	if f.noGoroutine {
		_ = f.o.home.n.contexts[f.o.home.i].Wait(ctx, f.isOver)
	}
	if err := f.o.home.n.awaitDone(ctx, f.o.home.i, f.done); err != nil {
		return &hg.Error{Op: "wait for", RPC: f.o.m.name, Fate: MaybeRan, Err: err}
	}
	return nil
}

// isOver reports whether the call has ended.
func (f *futureCall) isOver() bool { return isClosed(f.done) }

// Cancel ends the call with ErrCanceled, unless it has ended. It sends nothing, so the server goes
// on, and it does not block.
func (f *Future[Out]) Cancel() { f.f.endAttempts((*hg.Handle).Cancel) }

// Abandon is Cancel that also tells the server: the request is destroyed there, or the context of
// its handler ends. It does not block.
func (f *Future[Out]) Abandon() { f.f.endAttempts((*hg.Handle).Abandon) }

// endAttempts ends the attempts in flight with how, and the pause between two attempts.
func (f *futureCall) endAttempts(how func(*hg.Handle)) {
	f.o.stopAttempts(how)
	f.cancel()
}

// abandonAndWait abandons the call and waits until it has ended. It raises the panic of the call,
// if there was one.
func (f *futureCall) abandonAndWait() {
	if !f.isOver() {
		f.endAttempts((*hg.Handle).Abandon)
	}
	_ = f.wait(context.Background())
}

// Withdraw asks the server to return the request, so that it certainly does not run. It blocks
// until there is an answer, or until ctx is done; then the call is canceled. Retry begins no
// attempt meanwhile. The results are:
//
//   - hg.Withdrawn: no attempt ran or will run, or a handler refused the request (Refuse). The call
//     has ended: with ErrCanceled, with that refusal, or with what else kept the request from
//     running, such as ErrUnreachable.
//   - hg.Indeterminate: an attempt may have run. The call has ended, or is about to.
//   - hg.TooLate, hg.NotSupported: a handler runs, may run, or has run. The call has ended, or
//     continues as if Withdraw had not been called, and Retry may make further attempts.
func (f *Future[Out]) Withdraw(ctx context.Context) hg.WithdrawResult {
	w := &withdrawVotes{allVoted: make(chan struct{}), result: hg.Withdrawn}
	w.pending.Store(1)
	o := f.f.o
	asked := o.pauseAttempts(func(h *hg.Handle) {
		w.pending.Add(1)
		if h.Withdraw(0, func(_ *hg.Handle, r hg.WithdrawResult) {
			if w.addVote(r) {
				o.home.n.contexts[o.home.i].Wake()
			}
		}) != nil {
			w.addVote(hg.TooLate) // the call of h has ended
		}
	})
	w.addVote(hg.Withdrawn)
	if asked {
		hctx := o.home.n.contexts[o.home.i]
		allVoted := func() bool { return isClosed(w.allVoted) }
		if hctx.Wait(ctx, allVoted) != nil && !allVoted() {
			f.Cancel()
			_ = hctx.WaitFor(context.Background(), time.Minute, allVoted)
		}
		if !allVoted() {
			return hg.Indeterminate
		}
		// If an attempt was ending at the same time, the call ends with it: wait to see which.
		if w.result == hg.TooLate || w.result == hg.NotSupported {
			_ = hctx.Wait(ctx, func() bool { return f.f.isOver() || o.mayBeAnswered() })
			if !f.f.isOver() {
				o.resumeAttempts()
				return w.result
			}
		}
	}
	f.f.cancel() // ends the pause between two attempts
	_ = f.f.waitEnd(context.Background())
	switch FateOf(f.f.err) {
	case NotRun:
		return hg.Withdrawn
	case MaybeRan:
		return hg.Indeterminate
	}
	return hg.TooLate
}

// withdrawVotes combines the answers of the servers of several attempts to one Withdraw.
type withdrawVotes struct {
	mu       sync.Mutex // guards result
	result   hg.WithdrawResult
	pending  atomic.Int32  // number of answers that are missing
	allVoted chan struct{} // closed with the last answer
}

// addVote adds one answer. It reports whether it was the last.
func (w *withdrawVotes) addVote(r hg.WithdrawResult) bool {
	w.mu.Lock()
	if r == hg.TooLate || r == hg.NotSupported && w.result != hg.TooLate {
		w.result = r
	}
	w.mu.Unlock()
	last := w.pending.Add(-1) == 0
	if last {
		close(w.allVoted)
	}
	return last
}

// WaitFirst blocks until the first of futures succeeds, returns its index and output, and abandons
// the others: when it returns they have ended. If none succeeds the index is -1, and the error
// joins those of all. When ctx ends first the calls go on, and the error matches the cause of ctx
// and says that a request may have run.
func WaitFirst[Out any](ctx context.Context, futures ...*Future[Out]) (i int, out Out, err error) {
	errs := []error{}
	if len(futures) == 0 {
		errs = append(errs, na.WithText(ErrInvalid, "qs: WaitFirst called without futures"))
	}
	left := make([]*futureCall, len(futures))
	for i, f := range futures {
		left[i] = f.f
	}
	for range futures {
		i, err := anyOf(ctx, left)
		if err != nil {
			return -1, out, &hg.Error{Op: "wait for", RPC: futures[0].f.o.m.name, Fate: MaybeRan,
				Err: err}
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

// anyOf waits until one of futures has ended, and returns its index. Elements of futures may be
// nil.
func anyOf(ctx context.Context, futures []*futureCall) (int, error) {
	var some *Node
	cases := []reflect.SelectCase{{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(ctx.Done())}}
	for i, f := range futures {
		var done reflect.Value
		if f != nil {
			if f.isOver() {
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
			if f != nil && f.isOver() {
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

// CallAll calls m at all peers at once, with the same input, and blocks until all calls have ended;
// the end of ctx ends them. outs[i] and errs[i] are what Method.Call would have returned for
// peers[i], and FateOf(errs[i]) says whether that request ran; errors.Join(errs...) is nil if all
// have succeeded. There is no bound on how many calls are in flight: that is len(peers). in may
// lend memory or a file to all of them, but no Reader and no Sink.
func CallAll[In, Out any](
	ctx context.Context, peers []Peer, m *Method[In, Out], in In,
) (outs []Out, errs []error) {
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
