package hg

import (
	"bytes"
	"context"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// Call encodes in, forwards it, waits as Context.Wait does, and decodes the output into out unless
// out is nil. The earlier of ctx's deadline and the timeout set by SetTimeout is sent with the
// request. If ctx is done first, the call is canceled locally without delay, and the target is
// notified as by Abandon. The call has always completed when Call returns, and the caller then owns
// the memory of in and out again.
//
// If the target has no free envelope, the request waits for one, regardless of
// na.Config.OnNoCredit, and does not count toward na.Config.SendQueue. If ctx was derived from
// WithNoWait, the call fails instead of waiting.
//
// The error matches exactly one of
//
//   - ErrTimeout (and context.DeadlineExceeded);
//   - ErrCanceled (and context.Canceled);
//   - ErrRemote; if the library at the target refused the request, the error also matches the code
//     of the refusal (see [RemoteError.Is]);
//   - another local code.
//
// If ctx is done, the error matches ctx.Err() and context.Cause(ctx), even if the target responded
// with a different error. A successful response is still returned. If ctx is done before Call
// begins, nothing is sent.
func (h *Handle) Call(ctx context.Context, in, out any) error {
	return h.callDraft(ctx, h.newEncodingDraft(), in, out)
}

// callTo implements hghook.CallTo. It calls Reset and then Call, and frees the output's memory
// before it returns.
func (h *Handle) callTo(ctx context.Context, to na.Addr, id ID, in, out any) error {
	rpc := h.ctx.class.rpcs.findRPC(id)
	if rpc == nil {
		return h.Reset(to, id)
	}
	d := h.newDraftLocked() // no lock needed: only the caller uses h, which is idle
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

// callDraft implements Call. d is a draft that holds the request's header and metadata.
func (h *Handle) callDraft(ctx context.Context, d draft, in, out any) error {
	err := d.encode(h.rpc.Codec, in)
	left, hasty, ended := h.readContext(ctx)
	if err != nil || ended != nil {
		return h.notBegun(ctx, &d, err, ended)
	}
	h.mu.Lock()
	return h.callAndDecode(ctx, d, left, hasty, out)
}

// callAndDecode calls callAndWait and decodes the output into out unless out is nil. The caller
// must hold h.mu, which callAndDecode releases.
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

// CallRaw is like Call, except that input and output are encoded by the program. out is valid until
// the next call on h or until h is closed.
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
	// h has been closed in the meantime, so releasing the last reference frees the output's memory.
	case h.refs.Load() == 1:
		out = bytes.Clone(out)
	}
	h.releaseHold()
	return out, err
}

type failFastKey struct{}

// WithNoWait returns a context whose calls, made by Call or CallRaw, fail with ErrNoCredit and
// NotRun instead of waiting if the target has no free envelope. A call that must connect first
// still waits for the connection.
func WithNoWait(ctx context.Context) context.Context {
	return context.WithValue(ctx, failFastKey{}, true)
}

// notBegun returns the error of a call that was not started. encoding is the error from encoding
// the input. If encoding is nil, ended is the reason why ctx is done. notBegun releases the draft d
// if d is not nil.
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

// readContext returns the time left until the deadline of ctx, or 0 if there is no deadline. hasty
// reports whether ctx was derived from WithNoWait. If ctx is done, err is the reason.
func (h *Handle) readContext(ctx context.Context) (left time.Duration, hasty bool, err error) {
	if _, ok := ctx.Deadline(); ok {
		left, err = h.ctx.timeLeft(ctx)
	}
	if err == nil && ctx.Err() != nil {
		err = ErrCanceled
	}
	return left, err == nil && ctx.Value(failFastKey{}) != nil, err
}

// callAndWait sends the request in, waits for the call to complete, and returns the output and the
// ID of its codec. The caller must hold h.mu, which callAndWait releases. If held is true, the
// caller must call releaseHold after reading out, which remains valid until then even if h is
// closed. If a function was set by hghook.OnEnd, callAndWait does not wait and returns zero values
// once the request has been sent.
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

// settleCall determines the result of a call for which callAndWait has finished waiting. It returns
// the results of callAndWait.
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

// deliverHeld passes seen, the event of a completed call, to Config.Observe. The caller must hold a
// reference to h. If Config.Observe panics, deliverHeld releases that reference.
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

// wakeWaiterLocked wakes the goroutine that waits for the call to complete, or calls the function
// set by hghook.OnEnd. The caller must hold k.h.mu.
func (k *call) wakeWaiterLocked() {
	if k.h.onEnd != nil {
		k.h.onEnd()
		return
	}
	k.h.waiter.End()
}

// endedBy is like the function endedBy, but first waits for ctx to be done if the call ended at its
// deadline. The clocks of c and ctx reach that time at slightly different moments, and ctx.Err, the
// cause, and the error of the call must agree. On a busy machine, the timer of ctx may expire late.
// endedBy waits at most 1 s, in case ctx is never done.
func (c *Context) endedBy(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || c.nctx.Scheduled() || na.CodeOf(err) != ErrTimeout {
		return endedBy(ctx, err)
	}
	// The call did not end at ctx's deadline.
	if left, wrong := c.timeLeft(ctx); wrong != nil || left == 0 || left > time.Millisecond {
		return err
	}
	slow, stop := c.nctx.WithTimeout(context.Background(), time.Second)
	defer stop()
	select {
	case <-ctx.Done():
	case <-slow.Done():
	}
	return endedBy(ctx, err)
}

// abandonAtContextEnd abandons the call because its context is done. A call that was already
// canceled stays canceled, and its target is not notified. A call whose deadline has passed is left
// to its own timer, whose error names the limit that delayed the call.
func (h *Handle) abandonAtContextEnd() {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := h.call
	isLate := k.deadline.At != 0 && h.ctx.Now() >= k.deadline.At
	if k.isInFlightLocked() && !k.canceling && !isLate {
		k.abandonLocked(ErrCanceled)
	}
}

// abandonWait lets Trigger, rather than a waiting goroutine, complete the call in flight.
func (h *Handle) abandonWait() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.call.hasWaiter = false
	if h.call.phase == callQueued && !h.call.endPostponed {
		_ = h.ctx.post(&h.call.done)
	}
}

// timeLeft returns the time left until the deadline of ctx, as measured by the clock of c. The
// result is 0 if ctx has no deadline, and negative if the deadline has passed.
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
