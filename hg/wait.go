package hg

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// ForwardWait is Forward that waits: it drives Progress and Trigger until the call has ended, and returns the call's error;
// Output is ready then. Where the target has no envelope free it waits for one, whatever na.Config.OnNoCredit says, and
// does not count against na.Config.SendQueue. When ctx ends first the call is canceled: the error matches ErrCanceled and
// the cause of ctx. Callbacks and handlers of others may run meanwhile, on this goroutine; inside one it may be called too.
func (h *Handle) ForwardWait(ctx context.Context, in any) error {
	return h.wait(ctx, func(cb ForwardFunc) error { return h.Forward(in, cb) })
}

// ForwardRawWait is ForwardWait for input that is bytes already.
func (h *Handle) ForwardRawWait(ctx context.Context, in []byte) error {
	return h.wait(ctx, func(cb ForwardFunc) error { return h.ForwardRaw(in, cb) })
}

func (h *Handle) wait(ctx context.Context, forward func(ForwardFunc) error) error {
	k, err := h.claim()
	if err != nil {
		return err
	}
	k.patient = true // the next Forward waits for an envelope
	h.mu.Unlock()
	var (
		c     = h.ctx
		ended atomic.Bool
		fail  error
	)
	if err := forward(func(_ *Handle, err error) {
		fail = err
		ended.Store(true)
		c.Rouse()
	}); err != nil {
		h.mu.Lock()
		k.patient = false
		h.mu.Unlock()
		return err
	}
	stop := context.AfterFunc(ctx, func() {
		h.Cancel()
		c.Rouse()
	})
	defer stop()
	for c.Trigger(0); !ended.Load(); c.Trigger(0) {
		if na.CodeOf(c.ProgressUntil(-1, ended.Load)) == ErrClosed {
			runtime.Gosched() // the callback is in the queue, or another goroutine is about to run it
		}
	}
	if fail != nil && ctx.Err() != nil {
		fail = fmt.Errorf("%w: %w", fail, context.Cause(ctx))
	}
	return fail
}
