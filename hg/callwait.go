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
// free the request waits for one, whatever na.Config.OnNoCredit says, and does not count against na.Config.SendQueue; with
// WithNoWait the call ends at once.
//
// The error matches exactly one of ErrTimeout (and context.DeadlineExceeded), ErrCanceled (and context.Canceled), ErrRemote, or
// another local code; what the library at the target has refused matches ErrRemote and its code (see [RemoteError.Is]). If ctx has ended it is the one that ctx.Err says, and context.Cause(ctx), whatever the target has answered
// meanwhile: only success counts more. A ctx that has ended before sends nothing.
func (h *Handle) Call(ctx context.Context, in, out any) error {
	return h.callDraft(ctx, h.newEncodingDraft(), in, out)
}

// callTo is hghook.CallTo: Reset and Call in one. It does not keep the memory of the output.
func (h *Handle) callTo(ctx context.Context, to na.Addr, id ID, in, out any) error {
	h.mu.Lock()
	if err := h.aimLocked(to, id); err != nil {
		h.mu.Unlock()
		return err
	}
	d := h.newDraftLocked()
	d.reserveForEncoding()
	h.mu.Unlock()
	err := h.callDraft(ctx, d, in, out)
	if k := h.call; k.env != nil || k.fetched != nil {
		h.freeOutput()
	}
	return err
}

// callDraft is Call with the draft of the input.
func (h *Handle) callDraft(ctx context.Context, d draft, in, out any) error {
	err := d.encode(h.rpc.Codec, in)
	if err != nil {
		return &Error{Op: "forward", RPC: h.Name(), Peer: h.Peer(), Fate: na.NotRun, Err: err}
	}
	left, hasty, err := h.readContext(ctx)
	if err != nil {
		d.releaseLarge()
		return err
	}
	h.mu.Lock()
	b, id, held, err := h.callAndWait(ctx, d, h.rpc.Codec.ID(), left, hasty)
	if !held {
		return err
	}
	defer h.releaseHold()
	if err != nil || out == nil {
		return err
	}
	return h.decodeOutput(b, id, out)
}

// CallRaw is Call for bytes. The output is valid until the next call or Close.
func (h *Handle) CallRaw(ctx context.Context, in []byte) (out []byte, err error) {
	left, hasty, err := h.readContext(ctx)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	d := h.newDraftLocked()
	d.setRaw(in)
	out, _, held, err := h.callAndWait(ctx, d, codec.EncodedID, left, hasty)
	if !held {
		return nil, err
	}
	switch {
	case err != nil:
		out = nil
	case h.refs.Load() == 1: // h has been closed meanwhile, and the memory of the output goes with the last hold
		out = bytes.Clone(out)
	}
	h.releaseHold()
	return out, err
}

type failFastKey struct{}

// WithNoWait returns a context whose calls, by Call and CallRaw, end with ErrNoCredit, and did not run, where the target has no envelope
// free: they do not wait for one. A call that has to connect first does not wait longer than for that.
func WithNoWait(ctx context.Context) context.Context {
	return context.WithValue(ctx, failFastKey{}, true)
}

// readContext returns how much time ctx leaves a call and whether it is of WithNoWait, or why it lets none begin.
func (h *Handle) readContext(ctx context.Context) (left time.Duration, hasty bool, err error) {
	if _, ok := ctx.Deadline(); ok {
		left, err = h.ctx.timeLeft(ctx)
	}
	if err == nil && ctx.Err() != nil {
		err = ErrCanceled
	}
	if err != nil {
		err = &Error{Op: "forward", RPC: h.Name(), Peer: h.Peer(), Fate: na.NotRun, Err: err}
		return 0, false, h.ctx.endedBy(ctx, err)
	}
	return left, ctx.Value(failFastKey{}) != nil, nil
}

// callAndWait sends a draft, waits for the end of the call, and returns its output and the codec of that. If held, h is held until the caller
// releases it, so that the output stays although h may be closed meanwhile. A call of hghook.OnEnd is not waited for, and not held.
// Locked, and unlocks.
func (h *Handle) callAndWait(ctx context.Context, in draft, codec uint8, limit time.Duration, hasty bool) (out []byte, id uint8, held bool, err error) {
	h.noWait = hasty
	err = h.forwardLocked(in, codec, limit, true, nil)
	onCall, onEnd, begun := h.onCall, h.onEnd, h.call.begun
	h.mu.Unlock()
	if err != nil {
		return nil, 0, false, h.ctx.endedBy(ctx, err)
	}
	if onCall != nil {
		onCall()
		begun = -1
	}
	if onEnd != nil {
		return nil, 0, false, nil
	}
	h.waiter.SetClock(begun)
	settled := false
	defer func() { // a callback of somebody else may panic
		if !settled {
			h.abandonWait()
		}
	}()
	h.waiter.Await(ctx, h.abandonAtContextEnd)
	settled = true
	return h.settleCall(ctx)
}

// settleCall ends a call that has been waited for. What it returns is as of callAndWait.
func (h *Handle) settleCall(ctx context.Context) (out []byte, id uint8, held bool, err error) {
	h.mu.Lock()
	o := h.call.settleLocked()
	out, id = h.call.output, h.call.answer.codec
	h.mu.Unlock()
	if o.seen != nil {
		h.deliverHeld(o.seen)
	}
	if o.err != nil {
		return out, id, true, h.ctx.endedBy(ctx, o.err)
	}
	return out, id, true, nil
}

// deliverHeld is deliver of what is observed of a call of h, which is held: a panic of Config.Observe releases it.
func (h *Handle) deliverHeld(seen *pendingEvent) {
	delivered := false
	defer func() {
		if !delivered {
			h.releaseHold()
		}
	}()
	seen.deliver()
	delivered = true
}

// endCall is hghook.EndCall.
func (h *Handle) endCall(ctx context.Context) error {
	_, _, held, err := h.settleCall(ctx)
	if held {
		h.releaseHold()
	}
	return err
}

// wakeWaiterLocked says that a call has ended to who waits for it. Locked.
func (k *call) wakeWaiterLocked() {
	if k.h.onEnd != nil {
		k.h.onEnd()
		return
	}
	k.h.waiter.End()
}

// endedBy is the function of that name, but waits for ctx to end when the call ended at its deadline: two clocks tell of one moment, and
// ctx.Err, the cause and the error of the call are to say the same. A ctx with a clock that is slow is not waited for.
func (c *Context) endedBy(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || c.nctx.Scheduled() || na.CodeOf(err) != ErrTimeout {
		return endedBy(ctx, err)
	}
	if left, wrong := c.timeLeft(ctx); wrong != nil || left == 0 || left > time.Millisecond { // not at that of ctx
		return err
	}
	slow, stop := c.nctx.WithTimeout(context.Background(), 100*time.Millisecond)
	defer stop()
	select {
	case <-ctx.Done():
	case <-slow.Done():
	}
	return endedBy(ctx, err)
}

// abandonAtContextEnd abandons the call whose context has ended. One that was canceled before stays canceled: the target is not told. One whose
// deadline has passed, too, ends by that, since it knows what has held it up.
func (h *Handle) abandonAtContextEnd() {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := h.call
	isLate := k.deadline.At != 0 && h.ctx.Now() >= k.deadline.At
	if k.isInFlightLocked() && !k.canceling && !isLate {
		k.abandonLocked(ErrCanceled)
	}
}

// abandonWait ends the wait for a call that goes on.
func (h *Handle) abandonWait() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.call.hasWaiter = false
	if h.call.phase == callQueued && !h.call.endPostponed {
		_ = h.ctx.post(&h.call.done)
	}
}

// timeLeft returns how much time ctx leaves, by the clock of c: 0 if it has no deadline, less than 0 when that has passed.
func (c *Context) timeLeft(ctx context.Context) (time.Duration, error) {
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
