package hg

import (
	"errors"
	"fmt"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/internal/slab"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// Forward encodes in with the RPC's codec and sends it to the target. It returns without waiting, and in is the caller's
// again then. cb is called with the call's outcome. A Forward that returns an error ran nothing and runs no callback: it
// matches na.ErrBusy when a call is under way, ErrOverflow when in is larger than Config.MaxInput, ErrAgain when more would be lent
// than Config.MaxLent, ErrTimeout when SetTimeout was given a time that has passed, ErrClosed from Shutdown or Close on, or the
// codec's error.
func (h *Handle) Forward(in any, cb ForwardFunc) error {
	d := h.newEncodingDraft()
	err := d.encode(h.rpc.Codec, in) // user code may run in it
	if err != nil {
		return &Error{Op: "forward", RPC: h.Name(), Peer: h.Peer(), Fate: na.NotRun, Err: err}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.forwardLocked(d, h.rpc.Codec.ID(), 0, false, cb)
}

// ForwardRaw is Forward for input that is bytes already: any codec of the target may decode it.
func (h *Handle) ForwardRaw(in []byte, cb ForwardFunc) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.newDraftLocked()
	d.setRaw(in)
	return h.forwardLocked(d, codec.EncodedID, 0, false, cb)
}

// A draft is a message that is being made. A payload that is too large to be kept is in memory of package slab, which is given back
// when the message is not needed any more: behind the front, or apart from it.
type draft struct {
	b            []byte // header and metadata, which are head bytes, and what is not apart
	frontLen     int
	headerLen    int          // bytes of the header of a request
	separate     []byte       // the payload; or nil
	slabMem      []byte       // the memory; or nil
	savedBuf     []byte       // what b was before its memory was that of slab; or nil
	isBorrowed   bool         // apart is the program's, until Forward or Respond returns
	droppedLen   int          // bytes of a payload that was, and has been copied by the transport
	streams      []StreamSpec // of a request
	lastLargeLen int          // how long the last payload of this kind was, if it was too large to be kept, and encoded; else 0
}

// size is the length of the payload in bytes.
func (d *draft) size() int { return max(len(d.payload()), d.droppedLen) }

func (d *draft) payload() []byte {
	if d.separate != nil {
		return d.separate
	}
	return d.b[d.frontLen:]
}

// splitForLoan returns what is lent of a message with a header of the given size, and what is in front of the key: without the metadata if
// that leaves no room for a key in limit bytes. Then it is ahead of the payload.
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

// borrowPayload has v be the payload, which is too large for a message: the transport copies it to where it is read, without a copy in between,
// unless it is lent.
func (d *draft) borrowPayload(v []byte) {
	if d.frontLen > minMessage || len(v) > na.MaxBody { // it may be lent
		d.copyPayload(v)
		return
	}
	d.separate, d.isBorrowed = v, true
}

// setRaw has v be the payload: a copy of it if it may fit a message.
func (d *draft) setRaw(v []byte) {
	if len(v) > na.MaxRoom-requestSize {
		d.borrowPayload(v)
	} else {
		d.b = append(d.b, v...)
	}
}

// ownBorrowed makes a copy of a payload that was borrowed, and passed has it be gone.
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

// reserveForEncoding has an encoding that will be as long as the last find its memory there.
func (d *draft) reserveForEncoding() {
	if n := d.lastLargeLen + d.frontLen; n > maxRetained && n <= slab.Max {
		d.savedBuf, d.slabMem = d.b, slab.Get(n)
		d.b = append(d.slabMem[:0], d.b...)
	}
}

// releaseLarge lets go of what is too large to be kept, and remembers that it was there. Nobody uses it any more.
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

// encode appends the input v.
func (d *draft) encode(c codec.Codec, v any) error {
	b, err := encode(c, d.b, v)
	if err != nil {
		d.releaseLarge()
		return err
	}
	d.b = b
	return nil
}

// encode appends the input v to b.
func encode(c codec.Codec, b []byte, v any) ([]byte, error) {
	out, err := appendWith(c, b, v)
	if _, coded := errors.AsType[Code](err); err != nil && !coded {
		err = fmt.Errorf("%w: %w", ErrInvalid, err)
	}
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

// maxRetained is the largest buffer that an idle handle keeps: append makes one of at most so many bytes for a message of na.MaxRoom,
// whatever it had before.
const maxRetained = 88 << 10

// releaseLargeLocked lets go of what is too large to be kept. Locked.
func (k *call) releaseLargeLocked() { k.in.releaseLarge() }

// newDraftLocked returns a draft of an input with header and metadata. Its buffer is that of the idle handle, which has none until forward
// gives it back. Locked.
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

// newEncodingDraft is newDraft for an encoding: the handle's last may have been large.
func (h *Handle) newEncodingDraft() draft {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.newDraftLocked()
	d.reserveForEncoding()
	return d
}

// forwardLocked sends a draft. If waits, the end of the call is that of Handle.waiter instead of a callback,
// and the request waits for an envelope, too. limit bounds its time beside SetTimeout; 0: it does not. Locked.
func (h *Handle) forwardLocked(in draft, codec uint8, limit time.Duration, waits bool, cb ForwardFunc) (err error) {
	k := h.call
	switch {
	case h.closed:
		return misuseError("forward", h.Name(), h.addr, ErrClosed, "the handle is closed")
	case k.phase != callIdle:
		return misuseError("forward", h.Name(), h.addr, na.ErrBusy, "the handle has a call that has not ended")
	case h.forbidden:
		return misuseError("forward", h.Name(), h.addr, ErrCanceled, "canceled before it was forwarded")
	}
	h.refs.Add(1) // until the callback has run: Close in another goroutine does no harm
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
	h.refs.Add(-1) // not the last: the program has one
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

// beginCallLocked makes k the record of a new call. Locked.
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
	if k.in.isBorrowed { // it may be what is sent: forward frees it
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

// postRequestLocked starts the call. An error means that nothing of it has begun. Locked.
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

// sendRequestLocked sends msg and awaits the answer. Locked.
func (k *call) sendRequestLocked(to na.Addr, msg []byte) error {
	spec := na.CallSpec{To: to, Tag: k.tag(), Msg: msg, Body: k.bodyBeside, Copy: k.in.isBorrowed, Bodies: true, By: k.deadline, OneWay: k.h.rpc.OneWay}
	if len(k.streams) > 0 {
		spec.Streams, spec.StreamsAt = k.streamEndsLocked(), streamAt
	}
	switch most := k.h.ctx.limits.MaxExpected; {
	case spec.OneWay:
	case len(k.streams) > 0: // it may last long: its answer has memory when it comes
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

// buildRequestLocked returns the message that asks for the call, and where to send it. An input that does not fit one, with the room that
// the target has granted, goes beside it, and is lent when there is no room. Locked.
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
	case len(k.in.streams) == 0: // a call with streams may last long, and would keep it from others
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
	to = nctx.Upper().Current(to) // the loan and the request go in the same session
	if msg, err = k.lendInputLocked(to, h.ctx.limits.MaxUnexpected); err != nil {
		k.returnRoomLocked()
	}
	return msg, to, err
}

// lendInputLocked lends the input to the peer at to, and the metadata if it does not fit a message of limit bytes, and returns the message that says so.
// Locked.
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
