package hg

import (
	"context"
	"runtime"
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// ForwardWait is Forward that waits: it drives Progress and Trigger until the call has ended, and returns the call's error;
// Output is ready then. Where the target has no envelope free it waits for one, whatever na.Config.OnNoCredit says, and
// does not count against na.Config.SendQueue. When ctx ends first the call is canceled: the error matches the cause of
// ctx, and ErrTimeout if its deadline has passed, else ErrCanceled. Callbacks and handlers of others may run meanwhile, on this goroutine; inside one it may be called too.
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
	defer h.release() // what claim has added
	k.patient = true  // the next Forward waits for an envelope
	h.mu.Unlock()
	var (
		c     = h.ctx
		ended atomic.Bool
		fail  error
	)
	begun := false
	defer func() { // the codec may panic
		if !begun {
			h.mu.Lock()
			k.patient = false
			h.mu.Unlock()
		}
	}()
	if err := forward(func(_ *Handle, err error) {
		fail = err
		ended.Store(true)
		c.Rouse()
	}); err != nil {
		return err
	}
	begun = true
	c.await(ctx, h.Cancel, ended.Load)
	return endedBy(ctx, fail)
}

// await drives Progress and Trigger until ended reports true, which a callback sees to, and calls cancel when ctx ends
// first; never later than it returns, when what cancel reaches may be a handle's next call.
func (c *Context) await(ctx context.Context, cancel func(), ended func() bool) {
	canceled := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(canceled)
		cancel()
		c.Rouse()
	})
	defer func() {
		if !stop() {
			<-canceled
		}
	}()
	if ctx.Err() != nil { // now, not when a goroutine comes to it
		cancel()
	}
	for c.Trigger(0); !ended(); c.Trigger(0) {
		if na.CodeOf(c.ProgressUntil(-1, ended)) == ErrClosed {
			runtime.Gosched() // the callback is in the queue, or another goroutine is about to run it
		}
	}
}
