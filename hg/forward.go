package hg

import (
	"errors"
	"fmt"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/internal/slab"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// Forward encodes in with the RPC's codec and sends it to the target. It does not block, and does
// not retain in after it returns. Unless Forward returns an error, cb is called in Trigger with the
// outcome of the call. The error matches
//
//   - na.ErrBusy if a call of h is in flight;
//   - ErrOverflow if in is larger than Config.MaxInput;
//   - ErrAgain if the bytes lent would exceed Config.MaxLent;
//   - ErrTimeout if the timeout set by SetTimeout is negative;
//   - ErrClosed once Shutdown or Close has been called;
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

// ForwardRaw is like Forward, except that the program has already encoded the input. The target
// decodes the input with the RPC's codec.
func (h *Handle) ForwardRaw(in []byte, cb ForwardFunc) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.newDraftLocked()
	d.setRaw(in)
	return h.forwardLocked(d, codec.EncodedID, 0, false, cb)
}

// A draft is a message under construction. A payload too large to be retained is stored in memory
// of package slab, which is freed when the message is no longer needed. Either b or separate is in
// that memory.
type draft struct {
	// b holds the header and metadata (frontLen bytes), followed by the payload unless it is in
	// separate.
	b          []byte
	frontLen   int
	headerLen  int    // length of a request's header in bytes
	separate   []byte // the payload, if it is not in b
	slabMem    []byte // slab memory of b or separate, if any
	savedBuf   []byte // previous b, if b was replaced by slab memory
	isBorrowed bool   // reports whether separate is memory of the program
	// droppedLen is the length of a borrowed payload that the transport has copied and that is no
	// longer in the draft.
	droppedLen int
	streams    []StreamSpec // streams of a request
	// lastLargeLen is the length of the previous encoded payload if it was too large to be retained,
	// otherwise 0.
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

// splitForLoan splits a message whose header has the given size into the body, which is lent, and
// the front, which is sent before the key. The metadata is part of the front. If that would leave
// no room for a key within limit bytes, the metadata is the beginning of the body instead.
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

// borrowPayload sets the payload to v, which is too large for a message, without copying it. The
// draft refers to v only until Forward or Respond returns. If the payload may be lent, and so must
// outlive that call, borrowPayload copies v.
func (d *draft) borrowPayload(v []byte) {
	if d.frontLen > minMessage || len(v) > na.MaxBody { // may be lent, and the loan outlasts Forward
		d.copyPayload(v)
		return
	}
	d.separate, d.isBorrowed = v, true
}

// setRaw sets the payload to v. It copies v if v may fit in a message, and otherwise calls
// borrowPayload.
func (d *draft) setRaw(v []byte) {
	if len(v) > na.MaxRoom-requestSize {
		d.borrowPayload(v)
	} else {
		d.b = append(d.b, v...)
	}
}

// ownBorrowed replaces a borrowed payload with a copy. It does nothing if the payload is not
// borrowed.
func (d *draft) ownBorrowed() {
	if d.isBorrowed {
		d.isBorrowed = false
		d.copyPayload(d.separate)
	}
}

// dropBorrowed removes a borrowed payload from the draft after the transport has copied it.
func (d *draft) dropBorrowed() {
	if d.isBorrowed {
		d.droppedLen = len(d.separate)
		d.separate, d.isBorrowed = nil, false
	}
}

// copyPayload sets the payload to a copy of v, which is too large to be retained.
func (d *draft) copyPayload(v []byte) {
	if len(v) > slab.Max {
		d.separate = append([]byte(nil), v...)
		return
	}
	d.slabMem = slab.Get(len(v))
	copy(d.slabMem, v)
	d.separate = d.slabMem
}

// reserveForEncoding moves the draft into slab memory if the message would be too large to be
// retained with a payload as long as the previous one.
func (d *draft) reserveForEncoding() {
	if n := d.lastLargeLen + d.frontLen; n > maxRetained && n <= slab.Max {
		d.savedBuf, d.slabMem = d.b, slab.Get(n)
		d.b = append(d.slabMem[:0], d.b...)
	}
}

// releaseLarge frees memory that is too large to be retained, and records the length of the payload
// for reserveForEncoding. The message must not be used after releaseLarge is called.
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

// encode appends the encoding of v to the draft. If encoding fails, encode releases the draft.
func (d *draft) encode(c codec.Codec, v any) error {
	b, err := encode(c, d.b, v)
	if err != nil {
		d.releaseLarge()
		return err
	}
	d.b = b
	return nil
}

// encode appends the encoding of v to b. An error without a code is wrapped with ErrInvalid.
func encode(c codec.Codec, b []byte, v any) ([]byte, error) {
	out, err := appendWith(c, b, v)
	if _, coded := errors.AsType[Code](err); err != nil && !coded {
		err = fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return out, err
}

// appendWith appends the encoding of v to b, and verifies that the codec did not shorten b.
func appendWith(c codec.Codec, b []byte, v any) ([]byte, error) {
	out, err := c.Append(b, v)
	if err == nil && len(out) < len(b) {
		err = na.WithText(ErrInvalid, fmt.Sprintf("codec %s: Append with %d bytes returned %d", c.Name(), len(b), len(out)))
	}
	return out, err
}

// maxRetained is the size of the largest buffer that an idle handle keeps. It is the most that
// append allocates for a message of na.MaxRoom bytes, whatever the buffer's previous size.
const maxRetained = 88 << 10

// releaseLargeLocked frees the draft's memory that is too large to be retained. The caller must
// hold k.h.mu.
func (k *call) releaseLargeLocked() { k.in.releaseLarge() }

// newDraftLocked returns a draft of a request that contains only the header and metadata. It takes
// the buffer of h, which forwardLocked puts back. The caller must hold h.mu unless h is idle and
// not used concurrently.
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

// newEncodingDraft returns a draft for an input that the caller encodes. The size of its memory
// depends on the handle's previous input.
func (h *Handle) newEncodingDraft() draft {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.newDraftLocked()
	d.reserveForEncoding()
	return d
}

// forwardLocked sends the request in the draft in. If waits is true, completion of the call wakes
// Handle.waiter instead of running a callback, and the request waits for an envelope regardless of
// na.Config.OnNoCredit. limit bounds the duration of the call in addition to SetTimeout, and 0
// means no limit. The caller must hold h.mu.
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
	h.refs.Add(1) // held until the callback has run, because another goroutine may close h
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
	h.refs.Add(-1) // never the last reference, because the program holds one
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

// beginCallLocked resets k for a new call and creates its streams. limit and cb are those passed to
// forwardLocked. The caller must hold k.h.mu.
func (k *call) beginCallLocked(limit time.Duration, cb ForwardFunc) error {
	h := k.h
	if h.ctx.nctx.Draining() && !h.rpc.own.ServeDraining && !h.ctx.class.isServing() {
		return errClosing
	}
	if size, limit := int64(k.in.size()), h.ctx.class.cfg.MaxInput; size > limit {
		return inputLimitError("this process's", size, limit)
	}
	if err := k.nextTag(); err != nil {
		return err
	}
	if len(k.streams) > 0 {
		k.closeStreamsLocked()
	}
	if k.in.isBorrowed { // the input may be the previous output, which forwardLocked frees after the send
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

// inputLimitError returns the error of a call whose input of size bytes exceeds limit. whose limit it
// is, such as "the target's", depends on the process that refuses the call.
func inputLimitError(whose string, size, limit int64) error {
	return na.WithText(ErrOverflow, fmt.Sprintf("input of %d bytes exceeds %s hg.Config.MaxInput of %d; use a qs.Source or a bulk.Handle",
		size, whose, limit))
}

// postRequestLocked posts the request. If it returns an error, no part of the call has begun. A
// failure after a part has begun becomes the result of the call. The caller must hold k.h.mu.
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

// sendRequestLocked posts the operation that sends msg and receives the response. The caller must
// hold k.h.mu.
func (k *call) sendRequestLocked(to na.Addr, msg []byte) error {
	spec := na.CallSpec{To: to, Tag: k.tag(), Msg: msg, Body: k.bodyBeside, Copy: k.in.isBorrowed, Bodies: true, By: k.deadline, OneWay: k.h.rpc.OneWay}
	if len(k.streams) > 0 {
		spec.Streams, spec.StreamsAt = k.streamEndsLocked(), streamAt
	}
	switch most := k.h.ctx.limits.MaxExpected; {
	case spec.OneWay:
	case len(k.streams) > 0: // may take long, so memory for the response is allocated when it arrives
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

// buildRequestLocked returns the request message and the address to which it must be sent. If the
// input does not fit in the message, it is sent in memory that the target has reserved, either in
// the message or separately. If the target has reserved none, the input is lent. The caller must
// hold k.h.mu.
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
	// A call with streams may take long, and would keep the room from other calls.
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
	to = nctx.Upper().Current(to) // the loan and the request must use the same session
	if msg, err = k.lendInputLocked(to, h.ctx.limits.MaxUnexpected); err != nil {
		k.returnRoomLocked()
	}
	return msg, to, err
}

// lendInputLocked lends the input to the peer at to and returns the message that carries the key.
// If the metadata does not fit in a message of limit bytes, it is lent as well. The caller must
// hold k.h.mu.
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
