package hg

import (
	"bytes"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// fateLocked tells what became of the request if no answer came.
func (k *call) fateLocked() na.Fate {
	switch {
	case k.opResult.Err != nil:
		return k.opResult.Fate
	case k.loanResult.ID != 0 && k.loanResult.ID <= k.opResult.ID && k.loanResult.Addr.Session() == k.opResult.Addr.Session(): // the session ended before the target has taken it
		return na.NotRun
	}
	return na.MaybeRan
}

// resultLocked decides how the call ended. It looks at all parts, in an order of its own.
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
		if said.early && said.Code == ErrNoMethod {
			said.nameMethod(h.rpc.Name, h.addr)
		}
		cause = k.withLocalCauseLocked(said)
		k.output = nil
	case h.rpc.OneWay && k.opResult.Err == nil && k.failure == nil:
		return nil
	case k.opResult.Err == nil && !h.rpc.OneWay: // an answer came and could not be taken in
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

// withLocalCauseLocked returns why the call has ended that was answered with an error: that, or what this side had ended it for before. A
// target that says that the time is up is believed when it nearly is: two clocks differ by less than a thousandth. Locked.
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

// An outcome is what is told of a call that has ended.
type outcome struct {
	h    *Handle
	cb   ForwardFunc
	seen *pendingEvent
	err  error
}

// finishInTrigger ends a call that had to wait for something, in Trigger.
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

// settleLocked decides the result of a call whose parts have ended, and makes the handle idle. Locked.
func (k *call) settleLocked() outcome {
	h := k.h
	k.err = k.resultLocked()
	if k.err != nil && len(k.streams) > 0 && !(k.isAnswered && (k.answer.flags&flagEarly == 0 || k.answer.fate != na.NotRun)) { // else the target ends them
		k.resetStreamsLocked(unwrapNA(k.err.(*Error).Err))
	}
	o := outcome{h, k.callback, k.endEventLocked(k.err), k.err}
	k.callback = nil
	k.setPhaseLocked(callIdle)
	k.releaseLargeLocked()
	return o
}

// runCallback runs the callback: the handle is idle again then.
func (o *outcome) runCallback() (ran int) {
	defer o.h.releaseHold() // deferred: the callback may panic, or end the goroutine
	o.seen.deliver()
	if o.cb != nil {
		o.cb(o.h, o.err)
	}
	return 1
}

// Output decodes the output of the last call into v. It returns the call's own error when that failed, and an error that
// matches na.ErrProtocol when the target has used another codec. It may be called until the next Forward or Close.
func (h *Handle) Output(v any) error {
	b, id, err := h.output()
	if err != nil {
		return err
	}
	return h.decodeOutput(b, id, v)
}

// decodeOutput decodes the output b, of the codec with a number, into v.
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

// OutputRaw returns the encoded output of the last call. The bytes are valid until the next Forward or Close.
func (h *Handle) OutputRaw() ([]byte, error) {
	b, _, err := h.output()
	return b, err
}

// freeOutput is hghook.FreeOutput. The caller has h, which is idle, to itself: nobody else changes what it holds of the last answer, which
// is nothing if that was short.
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
	case h.closed && h.refs.Load() == 0: // else its callback looks at the output
		return nil, 0, misuseError("output of", h.Name(), h.addr, ErrClosed, "the handle is closed")
	case h.call.phase != callIdle:
		return nil, 0, misuseError("output of", h.Name(), h.addr, na.ErrBusy, "the call has not ended")
	}
	if h.call.err != nil {
		return nil, 0, h.call.err
	}
	return h.call.output, h.call.answer.codec, nil
}

// OutputMeta returns the metadata that came with the last answer, of an error too. It is empty while a call is under way.
func (h *Handle) OutputMeta() Metadata {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.call.phase != callIdle {
		return Metadata{}
	}
	return Metadata{bytes.Clone(h.call.meta)}
}
