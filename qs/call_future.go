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
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A Future is a call started by Go. Its methods are safe for concurrent use and may be called more
// than once. There is no need to wait for a Future: the call completes on its own, at the latest
// when its context is done or its node is closed.
//
// Three methods complete a call early:
//
//   - Cancel completes it immediately and sends nothing. The handler continues.
//   - Abandon completes it immediately. The server destroys the request or cancels the context of
//     its handler.
//   - Withdraw completes it only if the server returns the request, which then certainly did not
//     run.
type Future[Out any] struct {
	f   *futureCall
	out *Out
}

// A futureCall is the part of a Future that does not depend on its type parameters.
type futureCall struct {
	o    *outgoingCall
	ctx  context.Context // the caller's context
	done chan struct{}   // closed when the call has completed
	err  error           // error of the call; valid once done is closed
	// panic is the value of a panic in an encoder or interceptor, which Wait re-raises. It is valid
	// once done is closed.
	panic       any
	cancel      context.CancelCauseFunc
	noGoroutine bool // the call is an openCall, so that waiting for it drives the node
}

// Go starts a call and returns without waiting for it. It is like Call in a new goroutine or, in
// the simulator, in a new coroutine. ctx governs the whole call. Memory, files and streams that the
// input lends belong to the call until it has completed. If an encoder or interceptor panics during
// the call, Wait, WaitFirst and CallAll re-raise the panic. If it calls runtime.Goexit, the error
// matches ErrInvalid.
func (m *Method[In, Out]) Go(ctx context.Context, to Peer, in In) *Future[Out] {
	k := m.begin(to, in)
	return &Future[Out]{begin(ctx, &k.outgoingCall), &k.out}
}

// begin starts the call o. A streaming call without interceptors may last for days. It runs as an
// openCall, which needs no goroutine. Any other call runs in its own goroutine. A call to the zero
// Peer fails immediately.
func begin(ctx context.Context, o *outgoingCall) *futureCall {
	f := &futureCall{o: o, ctx: ctx, done: make(chan struct{})}
	ctx, f.cancel = context.WithCancelCause(ctx)
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

// run makes the call and waits for it to complete.
func (f *futureCall) run(ctx context.Context) {
	returned := false
	defer func() { f.onEnd(ctx, returned, recover()) }()
	f.err = endedBy(f.ctx, f.o.run(ctx)) // f.ctx may be done before ctx, which is derived from it
	returned = true
}

// onEnd records the result of the call and closes f.done. returned is false if an interceptor or
// codec panicked with the value panicked, or called runtime.Goexit.
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
	f.cancel(nil)
	if o.streams != nil { // before f.done is closed: a call that has completed has an error for Send
		o.streams.endCall(f.err)
	}
	close(f.done)
	if p := o.home; p != nil {
		p.n.contexts[p.i].Wake()
	}
}

// Done returns a channel that is closed when the call has completed. In the simulator, a coroutine
// must use Wait instead of receiving from the channel.
func (f *Future[Out]) Done() <-chan struct{} { return f.f.done }

// Wait blocks until the call has completed and returns what Call would have returned. If ctx is
// done first, the call continues, and Wait returns an error that matches the cause of ctx and has
// the fate MaybeRan.
func (f *Future[Out]) Wait(ctx context.Context) (Out, error) {
	var none Out
	if err := f.f.wait(ctx); err != nil {
		return none, err
	}
	return *f.out, f.f.err
}

// wait blocks until the call has completed or ctx is done. If the call has completed, wait
// re-raises its panic, if any, and returns nil.
func (f *futureCall) wait(ctx context.Context) error {
	err := f.waitEnd(ctx)
	if err == nil && f.panic != nil {
		panic(f.panic)
	}
	return err
}

// waitEnd is like wait but does not re-raise a panic.
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

// isOver reports whether the call has completed.
func (f *futureCall) isOver() bool { return isClosed(f.done) }

// Cancel completes the call with ErrCanceled if it is still in progress. It sends nothing, so the
// server continues to process the request. It does not block.
func (f *Future[Out]) Cancel() { f.f.endAttempts((*hg.Handle).Cancel) }

// Abandon is like Cancel but also notifies the server, which destroys the request or cancels the
// context of its handler. It does not block.
func (f *Future[Out]) Abandon() { f.f.endAttempts((*hg.Handle).Abandon) }

// endAttempts calls how with the handle of each attempt in flight, and interrupts the pause between
// two attempts.
func (f *futureCall) endAttempts(how func(*hg.Handle)) {
	f.o.stopAttempts(how)
	f.cancel(nil)
}

// abandonAndWait abandons the call and waits for it to complete. It re-raises any panic of the
// call.
func (f *futureCall) abandonAndWait() {
	if !f.isOver() {
		f.endAttempts((*hg.Handle).Abandon)
	}
	_ = f.wait(context.Background())
}

// Withdraw asks the server to return the request, in which case it certainly does not run. It
// blocks until the server has answered or ctx is done. In the latter case it cancels the call.
// Retry starts no attempt while Withdraw blocks. The result is one of:
//
//   - hg.Withdrawn: no attempt ran or will run, or a handler refused the request (Refuse). The call
//     has completed with ErrCanceled, with that refusal, or with another error that kept the
//     request from running, such as ErrUnreachable.
//   - hg.Indeterminate: an attempt may have run. The call has completed or is about to.
//   - hg.TooLate, hg.NotSupported: a handler is running, may be running, or has run. The call has
//     completed, or it continues as if Withdraw had not been called, and Retry may make further
//     attempts.
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
			w.addVote(hg.TooLate) // the call of h has completed
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
		// If an attempt was completing at the same time, the call completes with it. Wait to find
		// out.
		if w.result == hg.TooLate || w.result == hg.NotSupported {
			_ = hctx.Wait(ctx, func() bool { return f.f.isOver() || o.mayBeAnswered() })
			if !f.f.isOver() {
				o.resumeAttempts()
				return w.result
			}
		}
	}
	f.f.cancel(nil) // interrupts the pause between two attempts
	_ = f.f.waitEnd(context.Background())
	switch FateOf(f.f.err) {
	case NotRun:
		return hg.Withdrawn
	case MaybeRan:
		return hg.Indeterminate
	}
	return hg.TooLate
}

// withdrawVotes combines the responses to the withdrawals of several attempts into one result.
type withdrawVotes struct {
	mu       sync.Mutex // guards result
	result   hg.WithdrawResult
	pending  atomic.Int32  // number of pending responses
	allVoted chan struct{} // closed after the last response
}

// addVote adds the response to one withdrawal and reports whether no further response is pending.
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

// WaitFirst blocks until one of the futures succeeds, abandons the others and waits for them to
// complete, and returns the index and output of the successful one. If none succeeds, it returns
// index -1 and an error that joins those of all futures. If ctx is done first, the calls continue,
// and WaitFirst returns an error that matches the cause of ctx and has the fate MaybeRan.
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
		_ = f.wait(ctx) // already completed
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

// anyOf blocks until one of futures has completed and returns its index. If ctx is done first, it
// returns the cause of ctx. It skips nil elements.
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

// CallAll calls m at all peers concurrently with the same input, and blocks until all calls have
// completed. Canceling ctx cancels the calls. outs[i] and errs[i] are the results that Method.Call
// would have returned for peers[i]. FateOf(errs[i]) reports whether that request ran, and
// errors.Join(errs...) is nil if all calls succeeded. All len(peers) calls are in flight at the
// same time, without a limit. in may lend memory or a file, but neither a Reader nor a Sink.
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
