package hg

import (
	"bytes"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// fate tells what became of the request if no answer came.
func (k *call) fate() na.Fate {
	switch {
	case k.r.Err != nil:
		return k.r.Fate
	case k.lent.ID != 0 && k.lent.ID <= k.r.ID && k.lent.Addr.Session() == k.r.Addr.Session(): // the session ended before the target has taken it
		return na.NotRun
	}
	return na.MaybeRan
}

// result decides how the call ended. It looks at all parts, in an order of its own.
func (k *call) result() error {
	h := k.h
	fate := k.fate()
	var cause error
	switch {
	case k.withdrawn():
		fate, cause = na.NotRun, ErrCanceled
	case k.answered && k.answer.code == na.OK:
		return nil
	case k.answered:
		fate = k.answer.fate
		said := k.answer.remote(k.output, h.rpc.Codec)
		if said.early && said.Code == ErrNoMethod {
			said.nameMethod(h.rpc.Name, h.addr)
		}
		cause = k.overtakes(said)
		k.output = nil
	case h.rpc.OneWay && k.r.Err == nil && k.failure == nil:
		return nil
	case k.r.Err == nil && !h.rpc.OneWay: // an answer came and could not be taken in
		cause = bare(k.failure)
		if k.understood {
			fate = na.Ran
		}
		if k.canceling && na.CodeOf(cause) == ErrCanceled {
			cause = k.why
		}
	case k.canceling:
		cause = k.why
	case k.r.Err != nil:
		cause = bare(k.r.Err)
	default:
		cause = bare(k.failure)
	}
	if cause == error(ErrClosed) {
		cause = errClosed
	}
	return &Error{Op: "forward", RPC: h.Name(), Peer: h.addr, Took: h.ctx.since(k.begun), Fate: fate, Err: cause}
}

// overtakes returns why the call has ended that was answered with an error: that, or what this side had ended it for before. A
// target that says that the time is up is believed when it nearly is: two clocks differ by less than a thousandth. Locked.
func (k *call) overtakes(said error) error {
	now, timeout := k.h.ctx.Now(), k.answer.code == ErrTimeout
	left := k.by.At - now
	switch up := k.by.At != 0 && (left <= 0 || timeout && left <= (now-k.begun)/1000); {
	case k.canceling && k.why == ErrCanceled:
		return &overtaken{[]error{ErrCanceled}, said}
	case up && timeout && k.answer.fate == na.NotRun:
		return errLate
	case up && timeout:
		return errTooLong
	case up, k.canceling && k.why == ErrTimeout:
		return &overtaken{[]error{errTooLong}, said}
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

// finish ends a call that had to wait for something, in Trigger.
func (k *call) finish(any) (ran int) {
	k.h.mu.Lock()
	if k.waits {
		k.postponed = false
		k.endWait()
		k.h.mu.Unlock()
		return 0
	}
	o := k.settle()
	k.h.mu.Unlock()
	return o.run()
}

// settle decides the result of a call whose parts have ended, and makes the handle idle. Locked.
func (k *call) settle() outcome {
	h := k.h
	k.err = k.result()
	if k.err != nil && len(k.streams) > 0 && !(k.answered && (k.answer.flags&flagEarly == 0 || k.answer.fate != na.NotRun)) { // else the target ends them
		k.resetStreams(bare(k.err.(*Error).Err))
	}
	o := outcome{h, k.cb, k.endEvent(k.err), k.err}
	k.cb = nil
	k.to(callIdle)
	k.trim()
	return o
}

// run runs the callback: the handle is idle again then.
func (o *outcome) run() (ran int) {
	defer o.h.release() // deferred: the callback may panic, or end the goroutine
	o.seen.tell()
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
	return h.decode(b, id, v)
}

// decode decodes the output b, of the codec with a number, into v.
func (h *Handle) decode(b []byte, id uint8, v any) error {
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
	k.freeOutput()
}

func (h *Handle) output() (b []byte, codec uint8, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed && h.refs.Load() == 0: // else its callback looks at the output
		return nil, 0, misuse("output of", h.Name(), h.addr, ErrClosed, "the handle is closed")
	case h.call.phase != callIdle:
		return nil, 0, misuse("output of", h.Name(), h.addr, na.ErrBusy, "the call has not ended")
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
