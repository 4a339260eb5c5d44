package hg

import (
	"errors"
	"fmt"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/internal/slab"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// Forward encodes in with the RPC's codec and sends it to the target. It does not block, and in is
// the caller's again when it returns. cb runs in Trigger with the outcome of the call, unless
// Forward returns an error. The error matches
//   - na.ErrBusy if a call of h is in flight;
//   - ErrOverflow if in is larger than Config.MaxInput;
//   - ErrAgain if more than Config.MaxLent would be lent;
//   - ErrTimeout if SetTimeout was given a time that has passed;
//   - ErrClosed from Shutdown or Close on;
//   - the codec's error otherwise.
func (h *Handle) Forward(in any, cb ForwardFunc) error {
	d := h.newEncodingDraft()
	err := d.encode(h.rpc.Codec, in) // may run user code
	if err != nil {
		return &Error{Op: "forward", RPC: h.Name(), Peer: h.Peer(), Fate: na.NotRun, Err: err}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.forwardLocked(d, h.rpc.Codec.ID(), 0, false, cb)
}

// ForwardRaw is Forward for input that is encoded already: the target decodes it with its codec,
// whichever that is.
func (h *Handle) ForwardRaw(in []byte, cb ForwardFunc) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.newDraftLocked()
	d.setRaw(in)
	return h.forwardLocked(d, codec.EncodedID, 0, false, cb)
}

// A draft is a message under construction. A payload that is too large to be kept is in memory of
// package slab, which is freed when the message is no longer needed: either b is in that memory, or
// separate is.
type draft struct {
	// header and metadata, which are frontLen bytes, and the payload unless that is in separate
	b          []byte
	frontLen   int
	headerLen  int    // bytes of the header of a request
	separate   []byte // the payload if it is not in b; else nil
	slabMem    []byte // the slab memory of b or separate; or nil
	savedBuf   []byte // b before it was replaced by slab memory; or nil
	isBorrowed bool   // separate is the program's memory, until Forward or Respond returns
	// length of a borrowed payload that the transport has copied and that is no longer in the draft
	droppedLen int
	streams    []StreamSpec // streams of a request
	// length of the previous encoded payload, if it was too large to be kept; else 0
	lastLargeLen int
}

// size returns the length of the payload in bytes.
func (d *draft) size() int { return max(len(d.payload()), d.droppedLen) }

func (d *draft) payload() []byte {
	if d.separate != nil {
		return d.separate
	}
	return d.b[d.frontLen:]
}

// splitForLoan splits a message with a header of the given size into the body that is lent and the
// front that is sent before the key. The metadata is in front, unless that leaves no room for a key
// in limit bytes: then it is the beginning of the body.
func (d *draft) splitForLoan(header, limit int) (body, front []byte, flags uint8) {
	if d.frontLen == header || d.frontLen+na.KeySize <= limit {
		return d.payload(), d.b[:d.frontLen], flagMore
	}
	if d.separate != nil {
		d.b = append(d.b[:d.frontLen:d.frontLen], d.separate...)
		slab.Put(d.slabMem)
		d.separate, d.slabMem = nil, nil
	}
	return d.b[header:], d.b[:header], flagMore | flagAhead
}

// borrowPayload makes v, which is too large for a message, the payload, without a copy: the
// transport copies it into the memory from which it is read. A payload that may be lent is copied
// here.
func (d *draft) borrowPayload(v []byte) {
	if d.frontLen > minMessage || len(v) > na.MaxBody { // it may be lent, which outlasts Forward
		d.copyPayload(v)
		return
	}
	d.separate, d.isBorrowed = v, true
}

// setRaw makes v the payload: a copy of it if it may fit a message.
func (d *draft) setRaw(v []byte) {
	if len(v) > na.MaxRoom-requestSize {
		d.borrowPayload(v)
	} else {
		d.b = append(d.b, v...)
	}
}

// ownBorrowed replaces a borrowed payload with a copy. dropBorrowed removes a borrowed payload that
// the transport has copied.
func (d *draft) ownBorrowed() {
	if d.isBorrowed {
		d.isBorrowed = false
		d.copyPayload(d.separate)
	}
}

func (d *draft) dropBorrowed() {
	if d.isBorrowed {
		d.droppedLen = len(d.separate)
		d.separate, d.isBorrowed = nil, false
	}
}

// copyPayload makes a copy of v, which is too large to be kept, the payload.
func (d *draft) copyPayload(v []byte) {
	if len(v) > slab.Max {
		d.separate = append([]byte(nil), v...)
		return
	}
	d.slabMem = slab.Get(len(v))
	copy(d.slabMem, v)
	d.separate = d.slabMem
}

// reserveForEncoding moves the draft into slab memory if an encoding as long as the previous one
// would be too large to be kept.
func (d *draft) reserveForEncoding() {
	if n := d.lastLargeLen + d.frontLen; n > maxRetained && n <= slab.Max {
		d.savedBuf, d.slabMem = d.b, slab.Get(n)
		d.b = append(d.slabMem[:0], d.b...)
	}
}

// releaseLarge frees memory that is too large to be kept, and records the length of the payload for
// reserveForEncoding. The message must not be used afterwards.
func (d *draft) releaseLarge() {
	if len(d.b) > 0 {
		if d.lastLargeLen = 0; d.separate == nil && len(d.b) > maxRetained {
			d.lastLargeLen = d.size()
		}
	}
	if d.separate == nil && d.slabMem != nil || cap(d.b) > maxRetained {
		d.b = d.savedBuf[:0]
	}
	slab.Put(d.slabMem)
	d.separate, d.savedBuf, d.slabMem, d.isBorrowed, d.droppedLen = nil, nil, nil, false, 0
}

// encode appends the encoded input v; if that fails it releases the draft.
func (d *draft) encode(c codec.Codec, v any) error {
	b, err := encode(c, d.b, v)
	if err != nil {
		d.releaseLarge()
		return err
	}
	d.b = b
	return nil
}

// encode appends the encoded input v to b. An error without a code gets ErrInvalid.
func encode(c codec.Codec, b []byte, v any) ([]byte, error) {
	out, err := appendWith(c, b, v)
	if _, coded := errors.AsType[Code](err); err != nil && !coded {
		err = fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return out, err
}

// appendWith calls a codec to append v to b, and checks that it has not shortened b.
func appendWith(c codec.Codec, b []byte, v any) ([]byte, error) {
	out, err := c.Append(b, v)
	if err == nil && len(out) < len(b) {
		err = na.WithText(ErrInvalid, fmt.Sprintf("codec %s: Append with %d bytes returned %d", c.Name(), len(b), len(out)))
	}
	return out, err
}

// maxRetained is the largest buffer that an idle handle keeps: append allocates at most as many
// bytes for a message of na.MaxRoom, whatever the buffer was before.
const maxRetained = 88 << 10

// releaseLargeLocked frees memory of the draft that is too large to be kept.
func (k *call) releaseLargeLocked() { k.in.releaseLarge() }

// newDraftLocked returns a draft of an input with header and metadata. It takes the buffer of an
// idle handle, which forwardLocked puts back.
func (h *Handle) newDraftLocked() (d draft) {
	k := h.call
	if k.phase == callIdle {
		d.b, d.lastLargeLen, k.in = k.in.b, k.in.lastLargeLen, draft{}
	}
	if cap(d.b) < frontSize(na.MaxStreams) {
		d.b = make([]byte, 0, 256)
	}
	d.streams, d.headerLen = h.specs, frontSize(len(h.specs))
	d.b = append(d.b[:d.headerLen], h.meta.b...)
	d.frontLen = len(d.b)
	return d
}

// newEncodingDraft returns a draft to which an input is encoded; its memory is presized by the
// previous input of the handle.
func (h *Handle) newEncodingDraft() draft {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.newDraftLocked()
	d.reserveForEncoding()
	return d
}

// forwardLocked sends a draft. If waits, the end of the call wakes Handle.waiter instead of running
// a callback, and the request waits for an envelope whatever na.Config.OnNoCredit says. limit
// bounds the time of the call, in addition to SetTimeout; 0: no limit.
func (h *Handle) forwardLocked(in draft, codec uint8, limit time.Duration, waits bool, cb ForwardFunc) (err error) {
	k := h.call
	switch {
	case h.closed:
		return misuseError("forward", h.Name(), h.addr, ErrClosed, "the handle is closed")
	case k.phase != callIdle:
		return misuseError("forward", h.Name(), h.addr, na.ErrBusy, "the handle has a call in flight")
	case h.forbidden:
		return misuseError("forward", h.Name(), h.addr, ErrCanceled, "canceled before forward")
	}
	h.refs.Add(1) // held until the callback has run, since another goroutine may close h
	k.in, k.codec = in, codec
	k.op.SetPatient(waits && !h.noWait)
	k.op.SetHasty(waits && h.noWait)
	k.op.SetExpedited(h.rpc.own.Expedited)
	if waits && h.waiter == nil && h.onEnd == nil {
		h.waiter = h.ctx.loop.NewWaiter()
	}
	if h.timeout != 0 && (limit == 0 || h.timeout < limit) {
		limit = h.timeout
	}
	h.ctx.starting.Add(1)
	if err = k.beginCallLocked(limit, cb); err == nil {
		if k.hasWaiter = waits; waits && h.onEnd == nil {
			h.waiter.Reset()
		}
		err = k.postRequestLocked()
	}
	h.ctx.starting.Add(-1)
	k.previous.free()
	if err == nil {
		h.forwarded = true
		return nil
	}
	h.refs.Add(-1) // never the last hold: the program has one
	if k.phase != callIdle {
		k.setPhaseLocked(callIdle)
	}
	if len(k.streams) > 0 {
		k.closeStreamsLocked()
	}
	k.releaseLargeLocked()
	k.err = &Error{Op: "forward", RPC: h.Name(), Peer: h.addr, Fate: na.NotRun, Err: unwrapNA(err)}
	return k.err
}

// beginCallLocked resets k for a new call, and makes its streams.
func (k *call) beginCallLocked(limit time.Duration, cb ForwardFunc) error {
	h := k.h
	if h.ctx.nctx.Draining() && !h.rpc.own.ServeDraining && !h.ctx.class.isServing() {
		return errClosing
	}
	if size, limit := int64(k.in.size()), h.ctx.class.cfg.MaxInput; size > limit {
		return na.WithText(ErrOverflow, fmt.Sprintf("input of %d bytes, Config.MaxInput is %d", size, limit))
	}
	if err := k.nextTag(); err != nil {
		return err
	}
	if len(k.streams) > 0 {
		k.closeStreamsLocked()
	}
	if k.in.isBorrowed { // the input may be the previous output: forwardLocked frees it after the send
		k.previous, k.responseMemory = k.responseMemory, responseMemory{}
	}
	k.freeOutputLocked()
	k.callState = callState{callback: cb, begun: h.ctx.Now()}
	k.setPhaseLocked(callWaiting)
	if limit != 0 && !k.setDeadlineLocked(limit) {
		return errDeadlineOver
	}
	if len(k.in.streams) > 0 {
		return k.makeStreamsLocked()
	}
	return nil
}

// postRequestLocked posts the request. If it returns an error no part of the call has begun. A
// failure after a part has begun is the result of the call.
func (k *call) postRequestLocked() error {
	msg, to, err := k.buildRequestLocked()
	if err != nil {
		return err
	}
	if err = k.sendRequestLocked(to, msg); err != nil {
		k.returnRoomLocked()
		if k.openParts == 0 {
			return err
		}
		k.opResult = na.Result{Err: err, Fate: na.NotRun}
		k.markFailedLocked()
		k.cancelPartsLocked()
		return nil
	}
	k.openParts++
	return nil
}

// sendRequestLocked posts the operation that sends msg and receives the answer.
func (k *call) sendRequestLocked(to na.Addr, msg []byte) error {
	spec := na.CallSpec{To: to, Tag: k.tag(), Msg: msg, Body: k.bodyBeside, Copy: k.in.isBorrowed, Bodies: true, By: k.deadline, OneWay: k.h.rpc.OneWay}
	if len(k.streams) > 0 {
		spec.Streams, spec.StreamsAt = k.streamEndsLocked(), streamAt
	}
	switch most := k.h.ctx.limits.MaxExpected; {
	case spec.OneWay:
	case len(k.streams) > 0: // may last long, so memory for the answer is allocated when it arrives
		k.buf, spec.Most = nil, most
	default:
		if k.buf == nil {
			k.buf = make([]byte, most)
		}
		spec.Buf, spec.Most = k.buf, na.RoomBytes(k.room)
	}
	err := k.h.ctx.nctx.Upper().Call(&k.op, spec)
	if k.opRunning = err == nil; err == nil {
		k.in.dropBorrowed()
	}
	k.bodyBeside = nil
	return err
}

// buildRequestLocked returns the request message, and the address to send it to. An input that does
// not fit the message is sent in room that the target has granted, in the message or beside it;
// without such room it is lent.
func (k *call) buildRequestLocked() (msg []byte, to na.Addr, err error) {
	h := k.h
	req := request{codec: k.codec, meta: k.in.frontLen - k.in.headerLen, id: h.id, size: uint64(k.in.size())}
	if len(k.in.streams) > 0 {
		req.named = nameStreams(k.in.streams)
	}
	if req.size == 0 {
		req.codec = codec.NoBytesID
	}
	switch {
	case h.rpc.OneWay:
		req.flags |= flagOneWay
	// a call with streams may last long, and would keep the room from other calls
	case len(k.in.streams) == 0:
		k.reserveRoomLocked()
	}
	req.room = k.room
	nctx, in := h.ctx.nctx, &k.in
	if to = h.addr; h.bound {
		to = nctx.Upper().Current(to)
	}
	k.bodyBeside = nil
	switch n := in.frontLen + in.size(); {
	case n <= h.ctx.limits.MaxUnexpected:
		req.writeHeader(in.b)
		return in.b, to, nil
	case n <= na.MaxRoom && in.separate == nil:
		if bound, ok := nctx.Upper().ClaimRoom(to, n); ok {
			h.ctx.bodies.inline.Add(1)
			req.writeHeader(in.b)
			return in.b, bound, nil
		}
	case in.frontLen <= h.ctx.limits.MaxUnexpected:
		if bound, ok := nctx.Upper().ClaimRoom(to, in.size()); ok {
			h.ctx.bodies.inline.Add(1)
			req.writeHeader(in.b)
			k.bodyBeside = in.payload()
			return in.b[:in.frontLen], bound, nil
		}
	}
	req.flags |= flagMore
	req.writeHeader(in.b)
	to = nctx.Upper().Current(to) // the loan and the request have to use the same session
	if msg, err = k.lendInputLocked(to, h.ctx.limits.MaxUnexpected); err != nil {
		k.returnRoomLocked()
	}
	return msg, to, err
}

// lendInputLocked lends the input to the peer at to, with the metadata if that does not fit a
// message of limit bytes, and returns the message with the key.
func (k *call) lendInputLocked(to na.Addr, limit int) (msg []byte, err error) {
	h := k.h
	k.in.ownBorrowed()
	body, head, flags := k.in.splitForLoan(k.in.headerLen, limit)
	h.ctx.bodies.countLent(k.in.size())
	loan, key, err := h.ctx.lendBody(to, k.tag()|loanTag, body, account{expedited: h.rpc.own.Expedited}, k.onLoanEnded)
	if err != nil {
		return nil, err
	}
	k.loan = loan
	k.openParts++
	k.msg = key.Append(append(k.msg[:0], head...))
	k.msg[1] |= flags
	return k.msg, nil
}
