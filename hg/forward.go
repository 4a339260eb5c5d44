package hg

import (
	"fmt"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A ForwardFunc hears how one call ended. It runs in Trigger; it may forward h again, close it, or call anything else.
type ForwardFunc func(h *Handle, err error)

// The phases of a call.
const (
	idle     = iota
	encoding // Forward is encoding the input
	pending  // some part has not ended
	queued   // the callback waits for Trigger
)

// A call is the origin's side of a handle. Its parts are the sending of the request, the receive of the response, the
// loan of an input that is larger than a message, the pull of such an output, and the timer. Handle.mu guards it. Whatever the
// order in which the parts end, the result is decided once, when the last has ended, from what each of them was.
type call struct {
	h    *Handle
	slot uint32
	gen  uint64
	send *na.Op
	recv *na.Op

	phase     int
	patient   bool    // the next Forward waits for an envelope
	parts     int     // that have not ended
	canceling bool    // this side has ended it,
	why       na.Code // and why
	abandoned bool    // and the target is to hear of it
	begun     time.Duration
	by        na.Deadline
	timer     *na.Op // of the deadline; nil until there is one
	timing    bool   // it runs, and is a part
	cb        ForwardFunc
	done      Task

	in   []byte // header and encoded input
	msg  [requestSize + na.KeySize]byte
	buf  []byte // receives the response
	loan *loan
	pull *pull

	sending    bool        // the send was started
	sendEnded  bool        // and has ended
	withdrawal *withdrawal // the first of this call; or nil
	sent       na.Result
	received   na.Result
	answer     response
	understood bool  // answer is valid
	answered   bool  // and its payload complete
	failure    error // of understanding or fetching the answer
	output     []byte
	err        error // of the last call
}

func newCall(h *Handle) *call {
	k := &call{h: h, err: na.WithText(ErrInvalid, "the handle has not been forwarded")}
	k.slot, k.gen = h.ctx.takeSlot()
	k.send = h.ctx.nctx.NewOp(k.onSent)
	k.recv = h.ctx.nctx.NewOp(k.onReceived)
	k.done.Init(k.finish, nil)
	return k
}

// The identity of a call on the wire: slot and generation. The top bit stays free: it marks the loans of requests, so
// that they cannot be taken for those of responses that the peer asked for under the same number.
const (
	slotBits = 24
	maxSlot  = 1<<slotBits - 1
	maxGen   = 1<<(63-slotBits) - 1
	loanTag  = 1 << 63
)

// takeSlot gives a handle its part of the identity of calls.
func (c *Context) takeSlot() (slot uint32, gen uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.free); n > 0 {
		slot = c.free[n-1]
		c.free = c.free[:n-1]
		return slot, c.slots[slot]
	}
	c.slots = append(c.slots, 0)
	return uint32(len(c.slots) - 1), 0
}

// freeSlot takes it back; the generation goes on where it was. Locked.
func (c *Context) freeSlot(k *call) {
	c.slots[k.slot] = k.gen
	if k.gen < maxGen {
		c.free = append(c.free, k.slot)
	}
}

// nextTag begins a new life of the call's identity. A slot whose generations are used up is left for good.
func (k *call) nextTag() error {
	if k.gen >= maxGen {
		c := k.h.ctx
		c.mu.Lock()
		c.freeSlot(k)
		c.mu.Unlock()
		k.slot, k.gen = c.takeSlot()
	}
	if k.slot > maxSlot {
		return na.WithText(ErrAgain, "more handles than identities of calls")
	}
	k.gen++
	return nil
}

// tag is the identity of the call that is under way.
func (k *call) tag() na.Tag {
	return na.Tag(k.gen<<slotBits | uint64(k.slot))
}

// Forward encodes in with the class's codec and sends it to the target. It returns without waiting, and in is the
// caller's again then. cb hears how the call ended. A Forward that returns an error ran nothing and runs no callback: it matches
// ErrBusy when a call is under way, ErrOverflow when in is larger than Config.MaxInput, ErrAgain when more would be lent than
// Config.MaxLent, ErrTimeout when SetTimeout was given a time that has passed, ErrClosed from Shutdown or Close on, or the
// codec's error.
func (h *Handle) Forward(in any, cb ForwardFunc) error {
	k, err := h.claim()
	if err != nil {
		return err
	}
	begun := false
	defer func() { // the codec may panic
		if !begun {
			h.release()
		}
	}()
	k.found(evForward)
	k.phase = encoding
	k.note(evForward)
	h.mu.Unlock()
	b, err := h.encode(k.room(), in) // user code may run in it
	if err != nil {
		return &Error{Op: "forward", RPC: h.Name(), Peer: h.Addr(), Fate: na.NotRun, Err: err}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	defer k.note(k.found(evEncoded))
	k.in = b
	err = k.forward(cb)
	begun = err == nil
	return err
}

// encode runs the class's codec; an error and a panic of it free the handle.
func (h *Handle) encode(b []byte, v any) (out []byte, err error) {
	ok := false
	defer func() {
		if !ok {
			k := h.call
			h.mu.Lock()
			k.found(evEncodeFailed)
			k.phase = idle
			k.note(evEncodeFailed)
			h.mu.Unlock()
		}
	}()
	out, err = appendWith(h.ctx.class.cfg.Codec, b, v)
	ok = err == nil
	return out, err
}

// appendWith has a codec encode v at the end of b, which it must not shorten.
func appendWith(c codec.Codec, b []byte, v any) ([]byte, error) {
	out, err := c.Append(b, v)
	if err == nil && len(out) < len(b) {
		err = na.WithText(ErrInvalid, fmt.Sprintf("Append of codec %s was given %d bytes to add to and has returned %d", c.Name(), len(b), len(out)))
	}
	return out, err
}

// ForwardRaw is Forward for input that is bytes already.
func (h *Handle) ForwardRaw(in []byte, cb ForwardFunc) error {
	k, err := h.claim()
	if err != nil {
		return err
	}
	if err = k.forwardRaw(in, cb); err != nil {
		h.release()
	}
	return err
}

// forwardRaw goes on where claim has locked.
func (k *call) forwardRaw(in []byte, cb ForwardFunc) error {
	defer k.h.mu.Unlock()
	defer k.note(k.found(evForward))
	k.in = append(k.room(), in...)
	return k.forward(cb)
}

// claim returns the call of a handle that is free to be forwarded, with the lock held, and with the reference that the call
// has until its callback has run: Close in another goroutine does no harm.
func (h *Handle) claim() (*call, error) {
	k := h.call
	if k == nil {
		return nil, misuse("forward", h.Name(), h.addr, ErrInvalid, "the handle came with a request; Create makes one to forward")
	}
	h.mu.Lock()
	if k.phase != idle {
		k.note(k.found(evForward))
		err := misuse("forward", h.Name(), h.addr, ErrBusy, "the handle has a call that has not ended")
		h.mu.Unlock()
		return nil, err
	}
	if !h.hold() {
		err := misuse("forward", h.Name(), h.addr, ErrInvalid, "the handle is closed")
		h.mu.Unlock()
		return nil, err
	}
	return k, nil
}

// maxKept is the largest buffer that an idle handle keeps.
const maxKept = 64 << 10

// room returns the input buffer with space for the header.
func (k *call) room() []byte {
	if cap(k.in) < requestSize || cap(k.in) > maxKept {
		k.in = make([]byte, 0, 256)
	}
	return k.in[:requestSize]
}

// forward sends k.in. Locked.
func (k *call) forward(cb ForwardFunc) error {
	h := k.h
	err := k.begin(cb)
	if err == nil {
		err = k.post()
	}
	if err == nil {
		return nil
	}
	k.phase = idle
	k.err = &Error{Op: "forward", RPC: h.Name(), Peer: h.addr, Fate: na.NotRun, Err: bare(err)}
	return k.err
}

// begin makes k the record of a new call. Locked.
func (k *call) begin(cb ForwardFunc) error {
	h := k.h
	if h.ctx.nctx.Draining() {
		return errClosing
	}
	if size, limit := int64(len(k.in)-requestSize), h.ctx.class.cfg.MaxInput; size > limit {
		return na.WithText(ErrOverflow, fmt.Sprintf("input of %d bytes, Config.MaxInput is %d", size, limit))
	}
	if err := k.nextTag(); err != nil {
		return err
	}
	k.send.SetPatient(k.patient)
	*k = call{
		h: h, slot: k.slot, gen: k.gen, send: k.send, recv: k.recv, done: k.done, in: k.in, buf: k.buf, timer: k.timer,
		phase: pending, cb: cb, begun: h.ctx.Now(),
	}
	if h.timeout != 0 && !k.setDeadline() {
		return errTooLong
	}
	return nil
}

// post starts the parts of the call. An error means that it started none. Locked.
func (k *call) post() error {
	h := k.h
	msg, err := k.request()
	if err != nil {
		return err
	}
	if !h.rpc.OneWay {
		if err = k.receive(); err != nil {
			k.received = na.Result{Err: err, Fate: na.NotRun}
		}
	}
	if err == nil {
		if err = h.ctx.nctx.SendUnexpectedBy(k.send, h.addr, k.tag(), msg, k.by); err == nil {
			k.parts++
			k.sending = true
			k.startTimer()
			return nil
		}
		k.sent = na.Result{Err: err, Fate: na.NotRun}
	}
	if k.parts == 0 {
		return err
	}
	k.stop()
	return nil
}

// request returns the message that asks for the call. An input that does not fit is lent. Locked.
func (k *call) request() (msg []byte, err error) {
	h := k.h
	req := request{id: h.id, size: uint64(len(k.in) - requestSize)}
	if h.rpc.OneWay {
		req.flags |= flagOneWay
	}
	msg = k.in
	if len(msg) > h.ctx.nctx.Limits().MaxUnexpected {
		req.flags |= flagMore
		var key na.Key
		if k.loan, key, err = h.ctx.lend(h.addr, k.tag()|loanTag, k.in[requestSize:], k.onLoanEnded); err != nil {
			return nil, err
		}
		k.parts++
		msg = key.Append(k.msg[:requestSize])
	}
	req.put(msg)
	return msg, nil
}

// receive posts the receive of the response. Locked.
func (k *call) receive() error {
	nctx := k.h.ctx.nctx
	if k.buf == nil {
		k.buf = make([]byte, nctx.Limits().MaxExpected)
	}
	if err := nctx.RecvExpected(k.recv, k.h.addr, k.tag(), k.buf); err != nil {
		return err
	}
	k.parts++
	return nil
}

// stop cancels every part that has not ended. Locked.
func (k *call) stop() {
	k.recv.Cancel()
	k.send.Cancel()
	if k.loan != nil {
		k.loan.op.Cancel()
	}
	if k.pull != nil {
		k.pull.cancel()
	}
}

func (h *Handle) cancelCall() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.call.cancel(ErrCanceled)
}

// cancel ends the call, if one is under way. Locked.
func (k *call) cancel(why na.Code) {
	k.found(evCancel)
	if k.phase == pending {
		k.end(why)
	}
	k.note(evCancel)
}

// end ends the call from this side. Whoever comes first says why. Locked.
func (k *call) end(why na.Code) {
	if !k.canceling {
		k.canceling, k.why = true, why
		k.stop()
	}
}

func (k *call) onSent(_ *na.Op, r na.Result) {
	k.h.mu.Lock()
	defer k.h.mu.Unlock()
	defer k.note(k.found(sendEvent(r)))
	if na.CodeOf(r.Err) == na.ErrMsgSize && k.loan == nil && !k.canceling {
		if r.Err = k.resend(); r.Err == nil {
			return
		}
	}
	k.sent, k.sendEnded = r, true
	k.tell()
	if k.recalling() {
		k.withdrawal.sendEnded(r)
	}
	if r.Err != nil {
		k.stop() // nobody will answer
	}
	k.partEnded()
}

// resend lends the input when the peer takes shorter messages than this side.
func (k *call) resend() error {
	h := k.h
	tag := k.tag()
	loan, key, err := h.ctx.lend(h.addr, tag|loanTag, k.in[requestSize:], k.onLoanEnded)
	if err != nil {
		return err
	}
	copy(k.msg[:], k.in[:requestSize])
	k.msg[1] |= flagMore
	k.loan = loan
	k.parts++
	return h.ctx.nctx.SendUnexpectedBy(k.send, h.addr, tag, key.Append(k.msg[:requestSize]), k.by)
}

func (k *call) onReceived(_ *na.Op, r na.Result) {
	k.h.mu.Lock()
	defer k.h.mu.Unlock()
	defer k.note(k.found(endEvent(r.Err, evReceived, evReceiveFailed)))
	k.received = r
	if r.Err == nil {
		k.understand(k.buf[:r.N], r.Addr)
	}
	if k.pull == nil && k.loan != nil {
		k.loan.op.Cancel() // the target has what it needs, or never will
	}
	if r.Err != nil {
		k.send.Cancel()
	}
	k.partEnded()
}

// understand reads the response, and fetches its body if that is still at the target.
func (k *call) understand(b []byte, from na.Addr) {
	resp, payload, err := parseResponse(b)
	if err != nil {
		k.failure = err
		return
	}
	k.answer, k.understood = resp, true
	if resp.flags&flagMore == 0 {
		k.output, k.answered = payload, true
		return
	}
	key, err := bodyKey(payload, resp.size)
	if err != nil {
		k.failure = err
		return
	}
	c := k.h.ctx
	switch {
	case k.canceling: // the whole response has not arrived
		k.failure = k.why
		c.nctx.GiveBack(from, key)
	case int64(resp.size) > c.class.cfg.MaxOutput || int64(resp.size) < 0:
		k.failure = na.WithText(ErrOverflow, "the output is larger than Config.MaxOutput allows")
		c.nctx.GiveBack(from, key)
	default:
		if k.pull, err = c.fetch(from, key, k.onPulled); err != nil { // it gave the body back
			k.failure = err
			return
		}
		k.parts++
	}
}

func (k *call) onPulled(body []byte, err error) {
	k.h.mu.Lock()
	defer k.h.mu.Unlock()
	defer k.note(k.found(endEvent(err, evPulled, evPullFailed)))
	k.pull = nil
	if err != nil {
		k.failure = err
	} else {
		k.output, k.answered = body, true
	}
	if k.loan != nil {
		k.loan.op.Cancel()
	}
	k.partEnded()
}

func (k *call) onLoanEnded(_ *loan, r na.Result) {
	k.h.mu.Lock()
	defer k.h.mu.Unlock()
	defer k.note(k.found(evLoanEnded))
	k.loan = nil
	if k.h.rpc.OneWay && r.Err != nil {
		k.failure = r.Err
	}
	k.partEnded()
}

// partEnded queues the callback when no part is left. Locked.
func (k *call) partEnded() {
	if k.parts--; k.parts == 1 && k.timing {
		k.timer.Cancel()
	}
	if k.parts > 0 {
		return
	}
	k.phase = queued
	if k.recalling() {
		k.withdrawal.callEnds()
	}
	k.h.ctx.PostTask(&k.done)
}

// fate tells what became of the request if no answer came. Only the send knows: the receive may be of another session.
func (k *call) fate() na.Fate {
	if !k.sending || k.sent.Err != nil && k.sent.Fate == na.NotRun {
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
	case k.taken():
		fate, cause = na.NotRun, ErrCanceled
	case k.answered && k.answer.code == na.OK:
		return nil
	case k.answered && k.late():
		fate, cause = na.NotRun, errLate
		k.output = nil
	case k.answered:
		fate = k.answer.fate
		cause = &RemoteError{Code: k.answer.code, Text: string(k.output), Refused: fate == na.NotRun}
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

// late reports whether the target did not run the request because the deadline, which this side has set, had passed. Locked.
func (k *call) late() bool {
	return k.by.At != 0 && k.answer.code == ErrTimeout && k.answer.fate == na.NotRun
}

// finish runs in Trigger: the handle is idle again when the callback runs.
func (k *call) finish(any) {
	h := k.h
	h.mu.Lock()
	k.found(evTrigger)
	k.err = k.result()
	cb, err := k.cb, k.err
	k.cb, k.phase = nil, idle
	k.note(evTrigger)
	h.mu.Unlock()
	defer h.release() // deferred: the callback may panic, or end the goroutine
	if cb != nil {
		cb(h, err)
	}
}

// Output decodes the output of the last call into v. It returns the call's own error when that failed. It may be
// called until the next Forward or Close.
func (h *Handle) Output(v any) error {
	b, err := h.OutputRaw()
	if err != nil {
		return err
	}
	if err := h.ctx.class.cfg.Codec.Decode(b, v); err != nil {
		return &Error{Op: "output of", RPC: h.Name(), Peer: h.Addr(), Fate: na.Ran, Err: err}
	}
	return nil
}

// OutputRaw returns the encoded output of the last call. The bytes are valid until the next Forward or Close.
func (h *Handle) OutputRaw() ([]byte, error) {
	if h.call == nil {
		return nil, misuse("output of", h.Name(), h.addr, ErrInvalid, "the handle came with a request, it has input")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	defer h.call.note(h.call.found(evOutput))
	if h.call.phase != idle {
		return nil, misuse("output of", h.Name(), h.addr, ErrBusy, "the call has not ended")
	}
	if h.call.err != nil {
		return nil, h.call.err
	}
	return h.call.output, nil
}
