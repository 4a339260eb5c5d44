package hg

import (
	"context"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// Wait drives c, or sleeps while another goroutine does, until done reports true (nil), ctx ends (its cause), or c is closed
// and drained (ErrClosed). It runs what is queued, callbacks and handlers of others too, one at a time on this goroutine, and
// looks at done after each. It may be called inside one.
//
// Whoever makes done true calls Wake. done is quick, may be called by any goroutine that waits, and takes no lock that is held
// around a call of this module.
func (c *Context) Wait(ctx context.Context, done func() bool) error { return c.nctx.Wait(ctx, done) }

// WaitFor is Wait that gives up with ErrTimeout after timeout by Now; a negative one is no limit, zero looks once.
func (c *Context) WaitFor(ctx context.Context, timeout time.Duration, done func() bool) error {
	return c.nctx.WaitFor(ctx, timeout, done)
}

// Wake makes everybody who waits look again: Wait at its condition; and one Progress that sleeps now, or else the next
// one, returns nil.
func (c *Context) Wake() { c.nctx.Wake() }

// ForwardWait is Forward that waits: it drives Progress and Trigger until the call has ended, and returns the call's error;
// Output is ready then. Where the target has no envelope free it waits for one, whatever na.Config.OnNoCredit says, and
// does not count against na.Config.SendQueue. When ctx ends first the call is canceled: the error matches the cause of
// ctx, and ErrTimeout if its deadline has passed, else ErrCanceled. Callbacks and handlers of others may run meanwhile, on this
// goroutine; inside one it may be called too.
func (h *Handle) ForwardWait(ctx context.Context, in any) error {
	b, head := h.room()
	b, err := appendWith(h.rpc.Codec, b, in)
	if err != nil {
		return &Error{Op: "forward", RPC: h.Name(), Peer: h.Peer(), Fate: na.NotRun, Err: err}
	}
	return h.wait(ctx, b, head, h.rpc.Codec.ID())
}

// ForwardRawWait is ForwardWait for input that is bytes already.
func (h *Handle) ForwardRawWait(ctx context.Context, in []byte) error {
	b, head := h.room()
	return h.wait(ctx, append(b, in...), head, codec.RawID)
}

func (h *Handle) wait(ctx context.Context, in []byte, head int, codec uint8) error {
	if err := h.forward(in, head, codec, true, nil); err != nil {
		return err
	}
	settled := false
	defer func() { // a callback of somebody else may panic
		if !settled {
			h.leave()
		}
	}()
	await(ctx, h.waiter, h.Cancel)
	_, err := h.call.settle()
	settled = true
	h.release()
	return endedBy(ctx, err)
}

// leave ends the wait for a call that goes on.
func (h *Handle) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.call.waits = false
	if h.call.phase == queued {
		_ = h.ctx.PostTask(&h.call.done)
	}
}

// await waits for the end of w, and calls cancel when ctx ends first: never later than it returns, when what cancel reaches
// may be a handle's next call.
func await(ctx context.Context, w *na.Waiter, cancel func()) {
	if w.Wait(ctx) != nil && !w.Ended() {
		cancel()
		_ = w.Wait(context.Background())
	}
}
