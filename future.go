package quicksilver

import (
	"context"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A Future is a call that Go has begun.
type Future[Out any] struct {
	f   *future
	out Out
}

type future struct {
	n      *Node
	i      int
	ctl    control
	done   chan struct{}
	err    error // once done
	cancel context.CancelCauseFunc
}

// Go is Call on a goroutine of its own; in the simulator, in a coroutine.
func (m *Method[In, Out]) Go(ctx context.Context, to Peer, in In) *Future[Out] {
	f := &Future[Out]{f: &future{done: make(chan struct{})}}
	if to.p == nil {
		f.f.err = noPeer(m.m.name)
		f.f.cancel = func(error) {}
		close(f.f.done)
		return f
	}
	n := to.p.n
	f.f.n, f.f.i = n, to.p.i
	ctx, f.f.cancel = context.WithCancelCause(ctx)
	n.Go(func() {
		defer f.f.cancel(nil)
		f.out, f.f.err = m.call(ctx, to, in, &f.f.ctl)
		close(f.f.done)
		n.all[f.f.i].Wake()
	})
	return f
}

// Done is closed when the call has ended. A coroutine of the simulator does not wait for it: Wait does.
func (f *Future[Out]) Done() <-chan struct{} { return f.f.done }

// Wait returns what Call would have returned. When ctx ends first it returns the cause of that, and the call goes on.
func (f *Future[Out]) Wait(ctx context.Context) (Out, error) {
	var none Out
	if err := f.f.wait(ctx); err != nil {
		return none, err
	}
	return f.out, f.f.err
}

// wait returns nil when the call has ended.
func (f *future) wait(ctx context.Context) error {
	if f.over() {
		return nil
	}
	if f.n.hctx.NA().Scheduled() {
		if err := f.n.all[f.i].Wait(ctx, f.over); err != nil && !f.over() {
			return err
		}
		return nil
	}
	select {
	case <-f.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (f *future) over() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// Cancel ends the call with ErrCanceled, unless it has ended. Nothing is sent: the target goes on.
func (f *Future[Out]) Cancel() {
	c := &f.f.ctl
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = hg.ErrCanceled
	if c.h != nil {
		c.h.Cancel()
		return
	}
	f.f.cancel(nil) // it has not begun an attempt, or is between two
}

// Abandon is Cancel that lets the target know: the request is destroyed there, or the context of its handler ends.
func (f *Future[Out]) Abandon() {
	c := &f.f.ctl
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = hg.ErrCanceled
	if c.h != nil {
		c.h.Abandon()
		return
	}
	f.f.cancel(nil)
}

// Withdraw asks the target to give the request back, and waits for the answer, until ctx ends: then the call is canceled. After
// Withdrawn it is certain that the handler did not and will not run, and the call has ended with ErrCanceled. After TooLate the
// call goes on, or has ended. Retry makes no other attempt.
func (f *Future[Out]) Withdraw(ctx context.Context) hg.WithdrawResult {
	c := &f.f.ctl
	result, told := hg.Indeterminate, make(chan struct{})
	c.mu.Lock()
	c.stopped = hg.ErrCanceled
	h := c.h
	var err error
	if h != nil {
		err = h.Withdraw(0, func(_ *hg.Handle, r hg.WithdrawResult) {
			result = r
			close(told)
			f.f.n.all[f.f.i].Wake()
		})
	}
	c.mu.Unlock()
	if h == nil || err != nil {
		f.f.cancel(nil)
		if f.f.wait(context.Background()) == nil && FateOf(f.f.err) == NotRun {
			return Withdrawn
		}
		return hg.TooLate
	}
	heard := func() bool {
		select {
		case <-told:
			return true
		default:
			return false
		}
	}
	hctx := f.f.n.all[f.f.i]
	if hctx.Wait(ctx, heard) != nil && !heard() {
		f.Cancel()
		_ = hctx.WaitFor(context.Background(), time.Minute, heard)
	}
	if !heard() {
		return hg.Indeterminate
	}
	if result == hg.Withdrawn {
		_ = f.f.wait(context.Background())
	}
	return result
}
