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

// A Future is a call that Go has begun. Its methods may be called from any goroutine, and again. It
// need not be waited for: the call ends by itself, with its context or with the node.
//
//	                the call here   at the server
//	Abandon         ends now        is told: the request is destroyed, or the ctx of its handler ends
//	Cancel          ends now        is told nothing, and goes on
//	Withdraw        ends if the server gives the request back, which says for certain that it did not run
type Future[Out any] struct {
	f   *futureCall
	out *Out
}

type futureCall struct {
	o           *outgoingCall
	ctx         context.Context // the caller's
	done        chan struct{}
	err         error // once done
	panic       any   // of the program's code in the call, once done: who waits for the call panics with it
	cancel      context.CancelFunc
	noGoroutine bool // no goroutine makes it: who waits drives
}

// Go begins a call and returns without waiting: Call on a goroutine of its own; in the simulator,
// in a coroutine. ctx is that of the whole call. What in lends belongs to the call until it has
// ended. A panic of the program's code in the call, in an encoder or an interceptor, is one of
// Wait, WaitFirst and CallAll; if that code ends the goroutine the error matches ErrInvalid.
func (m *Method[In, Out]) Go(ctx context.Context, to Peer, in In) *Future[Out] {
	k := m.begin(to, in)
	return &Future[Out]{begin(ctx, &k.outgoingCall), &k.out}
}

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

func (f *futureCall) run(ctx context.Context) {
	returned := false
	defer func() { f.onEnd(ctx, returned, recover()) }()
	f.err = hghook.EndedBy(f.ctx, f.o.run(ctx)) // it may have ended, and ctx not yet
	returned = true
}

// onEnd is the end of the call: returned is false if the program's code has panicked, or has ended the goroutine.
func (f *futureCall) onEnd(ctx context.Context, returned bool, panicked any) {
	o := f.o
	if !returned {
		why := "an interceptor or a codec has ended the goroutine of the call"
		if f.panic = panicked; panicked != nil {
			why = fmt.Sprintf("an interceptor or a codec has panicked: %v", panicked)
		}
		f.err = o.withFate(ctx, &o.top, o.m.name, &hg.Error{Op: "forward", RPC: o.m.name, Fate: NotRun, Err: na.WithText(ErrInvalid, why)})
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

// Done is closed when the call has ended. A coroutine of the simulator does not wait for it: Wait does.
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

// wait returns nil when the call has ended. It panics as that did.
func (f *futureCall) wait(ctx context.Context) error {
	err := f.waitEnd(ctx)
	if err == nil && f.panic != nil {
		panic(f.panic)
	}
	return err
}

// waitEnd is wait that does not panic.
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

func (f *futureCall) isOver() bool { return isClosed(f.done) }

// Cancel ends the call with ErrCanceled, unless it has ended. It sends nothing, so the server goes
// on, and it does not block.
func (f *Future[Out]) Cancel() { f.f.endAttempts((*hg.Handle).Cancel) }

// Abandon is Cancel that also tells the server: the request is destroyed there, or the context of
// its handler ends. It does not block.
func (f *Future[Out]) Abandon() { f.f.endAttempts((*hg.Handle).Abandon) }

// endAttempts ends the attempts under way with how, and what waits between two.
func (f *futureCall) endAttempts(how func(*hg.Handle)) {
	f.o.stopAttempts(how)
	f.cancel()
}

// abandonAndWait abandons the call unless it has ended, and waits until it has. It panics as that did.
func (f *futureCall) abandonAndWait() {
	if !f.isOver() {
		f.endAttempts((*hg.Handle).Abandon)
	}
	_ = f.wait(context.Background())
}

// Withdraw asks the target to give the request back, and waits for the answer, until ctx ends: then the call is canceled. The results are
// those of package hg. After hg.Withdrawn it is certain that no attempt ran, and that none will, or that a handler refused it (Refuse),
// which says that it has done nothing. The call has ended, with ErrCanceled, with that refusal, or with what else has kept the request from
// running meanwhile, such as ErrUnreachable. After hg.Indeterminate it has ended, or is about to; an attempt of it may have run. After
// hg.TooLate, and hg.NotSupported, a handler may run or has run: the call goes on as if nobody had asked, or has ended. Retry makes no other
// attempt until the result is there, and later only after the last two.
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
			w.addVote(hg.TooLate) // it has ended
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
		if w.result == hg.TooLate || w.result == hg.NotSupported { // or an attempt was just ending, which ends the call
			_ = hctx.Wait(ctx, func() bool { return f.f.isOver() || o.mayBeAnswered() })
			if !f.f.isOver() {
				o.resumeAttempts()
				return w.result
			}
		}
	}
	f.f.cancel() // what waits between two attempts
	_ = f.f.waitEnd(context.Background())
	switch FateOf(f.f.err) {
	case NotRun:
		return hg.Withdrawn
	case MaybeRan:
		return hg.Indeterminate
	}
	return hg.TooLate
}

// An withdrawVotes is what the targets of the attempts of a call say that is to be taken back.
type withdrawVotes struct {
	mu       sync.Mutex // guards result
	result   hg.WithdrawResult
	pending  atomic.Int32
	allVoted chan struct{}
}

// addVote takes in what one says, and reports whether it was the last.
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
		errs = append(errs, na.WithText(ErrInvalid, "qs: WaitFirst of no futures"))
	}
	left := make([]*futureCall, len(futures))
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
