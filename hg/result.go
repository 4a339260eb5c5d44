package hg

import (
	"bytes"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// fate tells what became of the request if no answer came. Only the send knows, and the end of its session; the receive may be of
// another one.
func (k *call) fate() na.Fate {
	untaken := k.untaken != 0 && k.untaken <= k.sent.ID && k.over == k.sent.Addr.Session()
	if !k.sending || k.sent.Err != nil && k.sent.Fate == na.NotRun || untaken {
		return na.NotRun
	}
	return na.MaybeRan
}

// sessionOver looks at whether r is the end of a session of which the peer has said what it has taken. Locked.
func (k *call) sessionOver(r na.Result) {
	if r.Err != nil {
		k.over, k.untaken = r.Addr.Session(), r.ID
	}
}

// result decides how the call ended. It looks at all parts, in an order of its own.
func (k *call) result() error {
	h := k.h
	fate := k.fate()
	var cause error
	switch {
	case k.taken():
		fate, cause = na.NotRun, ErrCanceled
	case k.answered && k.answer.code == na.OK:
		return nil
	case k.answered && k.late():
		if fate, cause = k.answer.fate, errTooLong; fate == na.NotRun {
			cause = errLate
		}
		k.output = nil
	case k.answered:
		fate = k.answer.fate
		cause = k.answer.remote(k.output, h.rpc.Codec)
		k.output = nil
	case h.rpc.OneWay && k.sent.Err == nil && k.failure == nil:
		return nil
	case k.received.Err == nil && !h.rpc.OneWay && k.sent.Err == nil: // an answer came and could not be taken in
		cause = bare(k.failure)
		if k.understood {
			fate = na.Ran
		}
		if k.canceling && na.CodeOf(cause) == ErrCanceled {
			cause = k.why
		}
	case k.canceling:
		cause = k.why
	case k.sent.Err != nil && (na.CodeOf(k.sent.Err) != ErrCanceled || k.received.Err == nil):
		cause = bare(k.sent.Err)
	case k.received.Err != nil:
		cause = bare(k.received.Err)
	default:
		cause = bare(k.failure)
	}
	return &Error{Op: "forward", RPC: h.Name(), Peer: h.addr, Took: h.ctx.since(k.begun), Fate: fate, Err: cause}
}

// late reports whether the target has given the request up because the deadline, which this side has set, had passed. Locked.
func (k *call) late() bool {
	return k.by.At != 0 && k.answer.code == ErrTimeout && k.answer.fate != na.Ran
}

// finish runs in Trigger: the handle is idle again when the callback runs.
func (k *call) finish(any) {
	h := k.h
	cb, seen, err := k.settle()
	defer h.release() // deferred: the callback may panic, or end the goroutine
	seen.tell()
	if cb != nil {
		cb(h, err)
	}
}

// settle decides the result of a call whose parts have ended, and makes the handle idle.
func (k *call) settle() (ForwardFunc, *sighting, error) {
	k.h.mu.Lock()
	defer k.h.mu.Unlock()
	k.found(evTrigger)
	k.err = k.result()
	cb := k.cb
	k.cb, k.phase = nil, idle
	k.note(evTrigger)
	seen := k.sighted(k.err)
	k.trim()
	return cb, seen, k.err
}

// Output decodes the output of the last call into v. It returns the call's own error when that failed, and an error that
// matches ErrProtocol when the target has used another codec. It may be called until the next Forward or Close.
func (h *Handle) Output(v any) error {
	b, id, err := h.output()
	if err != nil {
		return err
	}
	if err = takes(h.rpc.Codec, id); err == nil {
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

func (h *Handle) output() (b []byte, codec uint8, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer h.call.note(h.call.found(evOutput))
	switch {
	case h.closed && h.refs.Load() == 0: // else its callback looks at the output
		return nil, 0, misuse("output of", h.Name(), h.addr, ErrClosed, "the handle is closed")
	case h.call.phase != idle:
		return nil, 0, misuse("output of", h.Name(), h.addr, ErrBusy, "the call has not ended")
	}
	if h.call.err != nil {
		return nil, 0, h.call.err
	}
	return h.call.output, h.call.answer.codec, nil
}

// OutputMeta returns the metadata that came with the last answer, of an error too. It is empty while a call is under way.
func (h *Handle) OutputMeta() Meta {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.call.phase != idle {
		return Meta{}
	}
	return Meta{bytes.Clone(h.call.meta)}
}
