package hg

import (
	"bytes"
	"context"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// Call encodes in, forwards it, waits as Context.Wait does, and decodes the output into out unless
// out is nil. The earlier of ctx's deadline and SetTimeout travels with the request. If ctx ends
// first, the call is canceled locally at once, and the target is notified as by Abandon. In any
// case the call has ended when Call returns: its memory is the caller's again.
//
// If the target has no free envelope the request waits for one, whatever na.Config.OnNoCredit says,
// and does not count against na.Config.SendQueue; with WithNoWait the call fails at once.
//
// The error matches exactly one of
//   - ErrTimeout (and context.DeadlineExceeded);
//   - ErrCanceled (and context.Canceled);
//   - ErrRemote; an error with which the library at the target refused the request also matches
//     its code (see [RemoteError.Is]);
//   - another local code.
//
// If ctx has ended, the error matches ctx.Err and context.Cause(ctx), even if the target has
// answered with another error; a success is returned nevertheless. If ctx has ended before Call,
// nothing is sent.
func (h *Handle) Call(ctx context.Context, in, out any) error {
	return h.callDraft(ctx, h.newEncodingDraft(), in, out)
}

// callTo implements hghook.CallTo: Reset and Call in one. The memory of the output is freed when it
// returns.
func (h *Handle) callTo(ctx context.Context, to na.Addr, id ID, in, out any) error {
	rpc := h.ctx.class.rpcs.findRPC(id)
	if rpc == nil {
		return h.Reset(to, id)
	}
	d := h.newDraftLocked() // without the lock: only the caller uses h, which is idle
	d.reserveForEncoding()
	err := d.encode(rpc.Codec, in)
	left, hasty, ended := h.readContext(ctx)
	h.mu.Lock()
	if busy := h.aimLocked(to, id); busy != nil {
		h.mu.Unlock()
		d.releaseLarge()
		return busy
	}
	if err != nil || ended != nil {
		h.mu.Unlock()
		return h.notBegun(ctx, &d, err, ended)
	}
	err = h.callAndDecode(ctx, d, left, hasty, out)
	if k := h.call; k.env != nil || k.fetched != nil {
		h.freeOutput()
	}
	return err
}

// callDraft implements Call; d is a draft with the front of the request.
func (h *Handle) callDraft(ctx context.Context, d draft, in, out any) error {
	err := d.encode(h.rpc.Codec, in)
	left, hasty, ended := h.readContext(ctx)
	if err != nil || ended != nil {
		return h.notBegun(ctx, &d, err, ended)
	}
	h.mu.Lock()
	return h.callAndDecode(ctx, d, left, hasty, out)
}

// callAndDecode calls callAndWait, and decodes the output into out unless out is nil. It is called
// with h.mu held and returns with it released.
func (h *Handle) callAndDecode(
	ctx context.Context, d draft, left time.Duration, hasty bool, out any,
) error {
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

// CallRaw is Call for input and output that are encoded already. out is valid until the next call
// or Close.
func (h *Handle) CallRaw(ctx context.Context, in []byte) (out []byte, err error) {
	left, hasty, err := h.readContext(ctx)
	if err != nil {
		return nil, h.notBegun(ctx, nil, nil, err)
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
	// h has been closed since, and the memory of the output is freed with the last hold
	case h.refs.Load() == 1:
		out = bytes.Clone(out)
	}
	h.releaseHold()
	return out, err
}

type failFastKey struct{}

// WithNoWait returns a context whose calls, by Call and CallRaw, fail with ErrNoCredit and NotRun
// if the target has no free envelope: they do not wait for one. A call that has to connect first
// waits for the connection only.
func WithNoWait(ctx context.Context) context.Context {
	return context.WithValue(ctx, failFastKey{}, true)
}

// notBegun returns the error of a call that was not started, because encoding its input has failed
// or ctx has ended. It releases d, the draft, if d is not nil.
func (h *Handle) notBegun(ctx context.Context, d *draft, encoding, ended error) error {
	if d != nil {
		d.releaseLarge()
	}
	if encoding != nil {
		return &Error{Op: "forward", RPC: h.Name(), Peer: h.Peer(), Fate: na.NotRun, Err: encoding}
	}
	return h.ctx.endedBy(ctx,
		&Error{Op: "forward", RPC: h.Name(), Peer: h.Peer(), Fate: na.NotRun, Err: ended})
}

// readContext returns how much time ctx leaves for a call (0: no limit), and hasty if ctx is of
// WithNoWait. If ctx has ended it returns the reason as the error.
func (h *Handle) readContext(ctx context.Context) (left time.Duration, hasty bool, err error) {
	if _, ok := ctx.Deadline(); ok {
		left, err = h.ctx.timeLeft(ctx)
	}
	if err == nil && ctx.Err() != nil {
		err = ErrCanceled
	}
	return left, err == nil && ctx.Value(failFastKey{}) != nil, err
}

// callAndWait sends a draft, waits for the end of the call, and returns its output and the codec of
// the output. It is called with h.mu held and returns with it released. If held, the caller must
// call releaseHold when it has read the output; until then the output is valid even if h is closed.
// A call of hghook.OnEnd is neither waited for nor held.
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
	defer func() { // Await runs other callbacks, which may panic
		if !settled {
			h.abandonWait()
		}
	}()
	h.waiter.Await(ctx, h.abandonAtContextEnd)
	settled = true
	return h.settleCall(ctx)
}

// settleCall completes a call after the wait for its end. The results are those of callAndWait.
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

// deliverHeld delivers the event of a call of h, which is held; if Config.Observe panics it
// releases h.
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

// endCall implements hghook.EndCall.
func (h *Handle) endCall(ctx context.Context) error {
	_, _, held, err := h.settleCall(ctx)
	if held {
		h.releaseHold()
	}
	return err
}

// wakeWaiterLocked wakes the goroutine that waits for the end of the call, or calls the function of
// hghook.OnEnd.
func (k *call) wakeWaiterLocked() {
	if k.h.onEnd != nil {
		k.h.onEnd()
		return
	}
	k.h.waiter.End()
}

// endedBy is the function endedBy, except that it waits for ctx to end if the call ended at its
// deadline. The clocks of c and of ctx reach that moment at slightly different times, and ctx.Err,
// the cause and the error of the call have to agree. It waits at most 100 ms, in case the clock of
// ctx is slow.
func (c *Context) endedBy(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || c.nctx.Scheduled() || na.CodeOf(err) != ErrTimeout {
		return endedBy(ctx, err)
	}
	// the call did not end at the deadline of ctx
	if left, wrong := c.timeLeft(ctx); wrong != nil || left == 0 || left > time.Millisecond {
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

// abandonAtContextEnd abandons the call because its context has ended. A call that was canceled
// before stays canceled, and its target is not notified. A call whose deadline has passed, too,
// ends by its own timer, whose error names the limit that delayed it.
func (h *Handle) abandonAtContextEnd() {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := h.call
	isLate := k.deadline.At != 0 && h.ctx.Now() >= k.deadline.At
	if k.isInFlightLocked() && !k.canceling && !isLate {
		k.abandonLocked(ErrCanceled)
	}
}

// abandonWait stops waiting for a call that continues. Trigger ends the call.
func (h *Handle) abandonWait() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.call.hasWaiter = false
	if h.call.phase == callQueued && !h.call.endPostponed {
		_ = h.ctx.post(&h.call.done)
	}
}

// timeLeft returns how much time ctx leaves, by the clock of c: 0 if ctx has no deadline, negative
// if it has passed.
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
