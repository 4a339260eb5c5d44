package hg

import (
	"context"
	"runtime"
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// ForwardWait is Forward that waits: it drives Progress and Trigger until the call has ended, and returns the call's error;
// Output is ready then. Where the target has no envelope free it waits for one, whatever na.Config.OnNoCredit says, and
// does not count against na.Config.SendQueue. When ctx ends first the call is canceled: the error matches the cause of
// ctx, and ErrTimeout if its deadline has passed, else ErrCanceled. Callbacks and handlers of others may run meanwhile, on this goroutine; inside one it may be called too.
func (h *Handle) ForwardWait(ctx context.Context, in any) error {
	b, head := h.room()
	b, err := appendWith(h.rpc.Codec, b, in)
	if err != nil {
		return &Error{Op: "forward", RPC: h.Name(), Peer: h.Addr(), Fate: na.NotRun, Err: err}
	}
	return h.wait(ctx, b, head, h.rpc.Codec.ID())
}

// ForwardRawWait is ForwardWait for input that is bytes already.
func (h *Handle) ForwardRawWait(ctx context.Context, in []byte) error {
	b, head := h.room()
	return h.wait(ctx, append(b, in...), head, codec.RawID)
}

func (h *Handle) wait(ctx context.Context, in []byte, head int, codec uint8) error {
	var (
		c     = h.ctx
		ended atomic.Bool
		fail  error
	)
	if err := h.forward(in, head, codec, true, func(_ *Handle, err error) {
		fail = err
		ended.Store(true)
		c.Rouse()
	}); err != nil {
		return err
	}
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
