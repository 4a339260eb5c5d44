package hg

import (
	"bytes"
	"context"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// Call forwards in, waits as Context.Wait does, and decodes the output into out unless out is nil. The sooner of ctx's deadline
// and SetTimeout travels with the request. When ctx ends first the call is canceled here, at once, and the target is told
// (Abandon). Call returns after the call's end in any case: its memory is the caller's again. Where the target has no envelope
// free the request waits for one, whatever na.Config.OnNoCredit says, and does not count against na.Config.SendQueue.
//
// The error matches exactly one of ErrTimeout (and context.DeadlineExceeded), ErrCanceled (and context.Canceled), ErrRemote, or
// another local code; and, if ctx ended it, context.Cause(ctx).
func (h *Handle) Call(ctx context.Context, in, out any) error {
	b, head := h.room()
	b, err := appendWith(h.rpc.Codec, b, in)
	if err != nil {
		return &Error{Op: "forward", RPC: h.Name(), Peer: h.Peer(), Fate: na.NotRun, Err: err}
	}
	held, err := h.callAndWait(ctx, b, head, h.rpc.Codec.ID())
	if held {
		defer h.release()
	}
	if err != nil || out == nil {
		return err
	}
	return h.Output(out)
}

// CallRaw is Call for bytes. The output is valid until the next call or Close.
func (h *Handle) CallRaw(ctx context.Context, in []byte) (out []byte, err error) {
	b, head := h.room()
	held, err := h.callAndWait(ctx, append(b, in...), head, codec.RawID)
	if held {
		defer h.release()
	}
	if err == nil {
		out, err = h.OutputRaw()
	}
	h.mu.Lock()
	if h.closed { // meanwhile; its memory goes
		out = bytes.Clone(out)
	}
	h.mu.Unlock()
	return out, err
}

// callAndWait reports whether h is held, so that its output stays: also if it has been closed meanwhile.
func (h *Handle) callAndWait(ctx context.Context, in []byte, head int, codec uint8) (held bool, err error) {
	left, err := h.ctx.left(ctx)
	if err != nil {
		return false, &Error{Op: "forward", RPC: h.Name(), Peer: h.Peer(), Fate: na.NotRun, Err: err}
	}
	h.mu.Lock()
	err = h.forward(in, head, codec, left, true, nil)
	h.mu.Unlock()
	if err != nil {
		return false, endedBy(ctx, err)
	}
	settled := false
	defer func() { // a callback of somebody else may panic
		if !settled {
			h.leave()
		}
	}()
	h.waiter.Await(ctx, h.Abandon)
	_, seen, err := h.call.settle()
	settled = true
	defer func() {
		if !held { // Config.Observe has panicked
			h.release()
		}
	}()
	seen.tell()
	return true, endedBy(ctx, err)
}

// leave ends the wait for a call that goes on.
func (h *Handle) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.call.waits = false
	if h.call.phase == queued {
		_ = h.ctx.post(&h.call.done)
	}
}

// left returns how much time ctx leaves, by the clock of c: 0 if it has no deadline, less than 0 when that has passed.
func (c *Context) left(ctx context.Context) (time.Duration, error) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return 0, nil
	}
	left, err := c.nctx.Until(deadline)
	if err != nil || left > 0 {
		return left, err
	}
	return -1, nil
}

// maxCallers bounds the handles that a context keeps for Call.
const maxCallers = 256

// Call is Handle.Call on a handle that c keeps for such calls.
func (c *Context) Call(ctx context.Context, to na.Addr, id ID, in, out any) error {
	h, err := c.caller(to, id)
	if err != nil {
		return err
	}
	defer c.keep(h)
	return h.Call(ctx, in, out)
}

// caller returns a handle for one call.
func (c *Context) caller(to na.Addr, id ID) (*Handle, error) {
	c.mu.Lock()
	n := len(c.callers)
	if n == 0 {
		c.mu.Unlock()
		return c.Create(to, id)
	}
	h := c.callers[n-1]
	c.callers = c.callers[:n-1]
	c.enlist(&h.open)
	c.mu.Unlock()
	if err := h.Reset(to, id); err != nil {
		c.keep(h)
		return nil, err
	}
	return h, nil
}

// keep takes a handle back, without its output. One whose call goes on, because a callback of somebody else has panicked in the
// wait, is closed.
func (c *Context) keep(h *Handle) {
	h.mu.Lock()
	idle := h.call.phase == idle
	if idle {
		h.call.freeOutput()
	}
	h.mu.Unlock()
	c.mu.Lock()
	kept := idle && len(c.callers) < maxCallers
	if kept {
		c.delist(&h.open)
		c.callers = append(c.callers, h)
	}
	c.mu.Unlock()
	if !kept {
		_ = h.Close()
	}
}
