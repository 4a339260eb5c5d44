package hg

import (
	"bytes"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// fateLocked returns the fate of the request of a call for which no response has arrived. The
// caller must hold k.h.mu.
func (k *call) fateLocked() na.Fate {
	switch {
	case k.opResult.Err != nil:
		return k.opResult.Fate
	// The session ended before the target accepted the request.
	case k.loanResult.ID != 0 && k.loanResult.ID <= k.opResult.ID && k.loanResult.Addr.Session() == k.opResult.Addr.Session():
		return na.NotRun
	}
	return na.MaybeRan
}

// resultLocked returns the result of a completed call. It depends on the outcomes of all parts, but
// not on the order in which they completed. The caller must hold k.h.mu.
func (k *call) resultLocked() error {
	h := k.h
	fate := k.fateLocked()
	var cause error
	switch {
	case k.isWithdrawnLocked():
		fate, cause = na.NotRun, ErrCanceled
	case k.isAnswered && k.answer.code == na.OK:
		return nil
	case k.isAnswered:
		fate = k.answer.fate
		said := k.answer.remoteError(k.output, h.rpc.Codec)
		if said.byLibrary && said.Code == ErrNoMethod {
			said.nameMethod(h.rpc.Name, h.addr)
		}
		cause = k.withLocalCauseLocked(said)
		k.output = nil
	case h.rpc.OneWay && k.opResult.Err == nil && k.failure == nil:
		return nil
	case k.opResult.Err == nil && !h.rpc.OneWay: // a response arrived, but could not be parsed or fetched
		cause = unwrapNA(k.failure)
		if k.isParsed {
			fate = na.Ran
		}
		if k.canceling && na.CodeOf(cause) == ErrCanceled {
			cause = k.cancelCode
		}
	case k.canceling:
		cause = k.cancelCode
	case k.opResult.Err != nil:
		cause = unwrapNA(k.opResult.Err)
	default:
		cause = unwrapNA(k.failure)
	}
	if cause == error(ErrClosed) {
		cause = errClosed
	}
	return &Error{Op: "forward", RPC: h.Name(), Peer: h.addr, Took: h.ctx.elapsedSince(k.begun), Fate: fate, Err: cause}
}

// withLocalCauseLocked returns the cause of the error of a call to which the target responded with
// the error said. If this side had already ended the call, the cause is the error with which it did
// so, and otherwise it is said. An ErrTimeout from the target counts as this side's own deadline if
// that has nearly passed, since the two clocks differ by less than one part in a thousand. The
// caller must hold k.h.mu.
func (k *call) withLocalCauseLocked(said error) error {
	now, timeout := k.h.ctx.Now(), k.answer.code == ErrTimeout
	left := k.deadline.At - now
	switch up := k.deadline.At != 0 && (left <= 0 || timeout && left <= (now-k.begun)/1000); {
	case k.canceling && k.cancelCode == ErrCanceled:
		return &overtakenError{[]error{ErrCanceled}, said}
	case up && timeout && k.answer.fate == na.NotRun:
		return errDeadlinePassed
	case up && timeout:
		return errDeadlineOver
	case up, k.canceling && k.cancelCode == ErrTimeout:
		return &overtakenError{[]error{errDeadlineOver}, said}
	}
	return said
}

// An outcome holds the result of a completed call until the callback has run and the event has been
// delivered.
type outcome struct {
	h    *Handle
	cb   ForwardFunc
	seen *pendingEvent
	err  error
}

// finishInTrigger completes a call whose completion was postponed. It runs in Trigger.
func (k *call) finishInTrigger(any) (ran int) {
	k.h.mu.Lock()
	if k.hasWaiter {
		k.endPostponed = false
		k.wakeWaiterLocked()
		k.h.mu.Unlock()
		return 0
	}
	o := k.settleLocked()
	k.h.mu.Unlock()
	return o.runCallback()
}

// settleLocked determines the result of a call whose parts have all completed, and makes the handle
// idle. The caller must hold k.h.mu.
func (k *call) settleLocked() outcome {
	h := k.h
	k.err = k.resultLocked()
	// If the handler has responded, the target ends the streams.
	if k.err != nil && len(k.streams) > 0 && !(k.isAnswered && (k.answer.flags&flagByLibrary == 0 || k.answer.fate != na.NotRun)) {
		k.resetStreamsLocked(unwrapNA(k.err.(*Error).Err))
	}
	o := outcome{h, k.callback, k.endEventLocked(k.err), k.err}
	k.callback = nil
	k.setPhaseLocked(callIdle)
	k.releaseLargeLocked()
	return o
}

// runCallback delivers the event and runs the callback. The handle must already be idle.
func (o *outcome) runCallback() (ran int) {
	defer o.h.releaseHold() // deferred: the callback may panic or call runtime.Goexit
	o.seen.deliver()
	if o.cb != nil {
		o.cb(o.h, o.err)
	}
	return 1
}

// Output decodes the output of the most recent call into v. It may be called until the next Forward
// or Close. If the call failed, Output returns the call's error. The error matches na.ErrBusy while
// the call is in flight, and na.ErrProtocol if the target used another codec.
func (h *Handle) Output(v any) error {
	b, id, err := h.output()
	if err != nil {
		return err
	}
	return h.decodeOutput(b, id, v)
}

// decodeOutput decodes the output b, which was encoded by the codec with the given ID, into v.
func (h *Handle) decodeOutput(b []byte, id uint8, v any) error {
	err := checkCodec(h.rpc.Codec, id)
	if err == nil {
		err = h.rpc.Codec.Decode(b, v)
	}
	if err != nil {
		return &Error{Op: "output of", RPC: h.Name(), Peer: h.Peer(), Fate: na.Ran, Err: err}
	}
	return nil
}

// OutputRaw returns the encoded output of the most recent call. The bytes are valid until the next
// Forward or Close. Errors are those documented for Output.
func (h *Handle) OutputRaw() ([]byte, error) {
	b, _, err := h.output()
	return b, err
}

// freeOutput implements hghook.FreeOutput. h is idle and only the caller uses it, so env and
// fetched may be read without holding the lock.
func (h *Handle) freeOutput() {
	k := h.call
	if k.env == nil && k.fetched == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	k.freeOutputLocked()
}

func (h *Handle) output() (b []byte, codec uint8, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed && h.refs.Load() == 0: // the callback of a held handle may still read the output
		return nil, 0, misuseError("output of", h.Name(), h.addr, ErrClosed, "the handle is closed")
	case h.call.phase != callIdle:
		return nil, 0, misuseError("output of", h.Name(), h.addr, na.ErrBusy, "the call has not ended")
	}
	if h.call.err != nil {
		return nil, 0, h.call.err
	}
	return h.call.output, h.call.answer.codec, nil
}

// OutputMeta returns the metadata of the most recent response, even if that was an error. It is
// empty while a call is in flight.
func (h *Handle) OutputMeta() Metadata {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.call.phase != callIdle {
		return Metadata{}
	}
	return Metadata{bytes.Clone(h.call.meta)}
}
