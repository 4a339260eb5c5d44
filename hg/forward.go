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
	d := h.longDraft()
	err := d.encode(h.rpc.Codec, in) // user code may run in it
	if err != nil {
		return &Error{Op: "forward", RPC: h.Name(), Peer: h.Peer(), Fate: na.NotRun, Err: err}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.forwardDraft(d, h.rpc.Codec.ID(), 0, false, cb)
}

// ForwardRaw is Forward for input that is bytes already: any codec of the target may decode it.
func (h *Handle) ForwardRaw(in []byte, cb ForwardFunc) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.newDraft()
	d.setRaw(in)
	return h.forwardDraft(d, codec.EncodedID, 0, false, cb)
}

// A draft is a message that is being made. A payload that is too large to be kept is in memory of package slab, which is given back
// when the message is not needed any more: behind the front, or apart from it.
type draft struct {
	b          []byte // header and metadata, which are head bytes, and what is not apart
	head       int
	front      int          // bytes of the header of a request
	separate   []byte       // the payload; or nil
	slab       []byte       // the memory; or nil
	short      []byte       // what b was before its memory was that of slab; or nil
	isBorrowed bool         // apart is the program's, until Forward or Respond returns
	droppedLen int          // bytes of a payload that was, and has been copied by the transport
	streams    []StreamSpec // of a request
	lastLong   int          // how long the last payload of this kind was, if it was too large to be kept, and encoded; else 0
}

// size is the length of the payload in bytes.
func (d *draft) size() int { return max(len(d.payload()), d.droppedLen) }

func (d *draft) payload() []byte {
	if d.separate != nil {
		return d.separate
	}
	return d.b[d.head:]
}

// splitForLoan returns what is lent of a message with a header of the given size, and what is in front of the key: without the metadata if
// that leaves no room for a key in limit bytes. Then it is ahead of the payload.
func (d *draft) splitForLoan(header, limit int) (body, front []byte, flags uint8) {
	if d.head == header || d.head+na.KeySize <= limit {
		return d.payload(), d.b[:d.head], flagMore
	}
	if d.separate != nil {
		d.b = append(d.b[:d.head:d.head], d.separate...)
		slab.Put(d.slab)
		d.separate, d.slab = nil, nil
	}
	return d.b[header:], d.b[:header], flagMore | flagAhead
}

// borrowPayload has v be the payload, which is too large for a message: the transport copies it to where it is read, without a copy in between,
// unless it is lent.
func (d *draft) borrowPayload(v []byte) {
	if d.head > minMessage || len(v) > na.MaxBody { // it may be lent
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
	d.slab = slab.Get(len(v))
	copy(d.slab, v)
	d.separate = d.slab
}

// reserveForEncoding has an encoding that will be as long as the last find its memory there.
func (d *draft) reserveForEncoding() {
	if n := d.lastLong + d.head; n > maxKept && n <= slab.Max {
		d.short, d.slab = d.b, slab.Get(n)
		d.b = append(d.slab[:0], d.b...)
	}
}

// releaseLarge lets go of what is too large to be kept, and remembers that it was there. Nobody uses it any more.
func (d *draft) releaseLarge() {
	if len(d.b) > 0 {
		if d.lastLong = 0; d.separate == nil && len(d.b) > maxKept {
			d.lastLong = d.size()
		}
	}
	if d.separate == nil && d.slab != nil || cap(d.b) > maxKept {
		d.b = d.short[:0]
	}
	slab.Put(d.slab)
	d.separate, d.short, d.slab, d.isBorrowed, d.droppedLen = nil, nil, nil, false, 0
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

// maxKept is the largest buffer that an idle handle keeps: append makes one of at most so many bytes for a message of na.MaxRoom,
// whatever it had before.
const maxKept = 88 << 10

// releaseLarge lets go of what is too large to be kept. Locked.
func (k *call) releaseLarge() { k.in.releaseLarge() }

// newDraft returns a draft of an input with header and metadata. Its buffer is that of the idle handle, which has none until forward
// gives it back. Locked.
func (h *Handle) newDraft() (d draft) {
	k := h.call
	if k.phase == callIdle {
		d.b, d.lastLong, k.in = k.in.b, k.in.lastLong, draft{}
	}
	if cap(d.b) < frontSize(na.MaxStreams) {
		d.b = make([]byte, 0, 256)
	}
	d.streams, d.front = h.specs, frontSize(len(h.specs))
	d.b = append(d.b[:d.front], h.meta.b...)
	d.head = len(d.b)
	return d
}

// longDraft is newDraft for an encoding: the handle's last may have been large.
func (h *Handle) longDraft() draft {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.newDraft()
	d.reserveForEncoding()
	return d
}

// forwardDraft sends a draft. If waits, the end of the call is that of Handle.waiter instead of a callback,
// and the request waits for an envelope, too. limit bounds its time beside SetTimeout; 0: it does not. Locked.
func (h *Handle) forwardDraft(in draft, codec uint8, limit time.Duration, waits bool, cb ForwardFunc) (err error) {
	k := h.call
	switch {
	case h.closed:
		return misuseError("forward", h.Name(), h.addr, ErrClosed, "the handle is closed")
	case k.phase != callIdle:
		return misuseError("forward", h.Name(), h.addr, na.ErrBusy, "the handle has a call that has not ended")
	case h.forbids:
		return misuseError("forward", h.Name(), h.addr, ErrCanceled, "canceled before it was forwarded")
	}
	h.refs.Add(1) // until the callback has run: Close in another goroutine does no harm
	k.in, k.codec = in, codec
	k.op.SetPatient(waits && !h.hasty)
	k.op.SetHasty(waits && h.hasty)
	k.op.SetExpedited(h.rpc.own.Expedited)
	if waits && h.waiter == nil && h.onEnd == nil {
		h.waiter = h.ctx.loop.NewWaiter()
	}
	if h.timeout != 0 && (limit == 0 || h.timeout < limit) {
		limit = h.timeout
	}
	h.ctx.starting.Add(1)
	if err = k.beginCall(limit, cb); err == nil {
		if k.hasWaiter = waits; waits && h.onEnd == nil {
			h.waiter.Reset()
		}
		err = k.postRequest()
	}
	h.ctx.starting.Add(-1)
	k.previous.free()
	if err == nil {
		h.forwarded = true
		return nil
	}
	h.refs.Add(-1) // not the last: the program has one
	if k.phase != callIdle {
		k.setPhase(callIdle)
	}
	if len(k.streams) > 0 {
		k.closeStreams()
	}
	k.releaseLarge()
	k.err = &Error{Op: "forward", RPC: h.Name(), Peer: h.addr, Fate: na.NotRun, Err: unwrapNA(err)}
	return k.err
}

// beginCall makes k the record of a new call. Locked.
func (k *call) beginCall(limit time.Duration, cb ForwardFunc) error {
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
		k.closeStreams()
	}
	if k.in.isBorrowed { // it may be what is sent: forward frees it
		k.previous, k.responseMemory = k.responseMemory, responseMemory{}
	}
	k.freeOutput()
	k.callState = callState{callback: cb, begun: h.ctx.Now()}
	k.setPhase(callWaiting)
	if limit != 0 && !k.setDeadline(limit) {
		return errTooLong
	}
	if len(k.in.streams) > 0 {
		return k.makeStreams()
	}
	return nil
}

// postRequest starts the call. An error means that nothing of it has begun. Locked.
func (k *call) postRequest() error {
	msg, to, err := k.buildRequest()
	if err != nil {
		return err
	}
	if err = k.sendRequest(to, msg); err != nil {
		k.returnRoom()
		if k.openParts == 0 {
			return err
		}
		k.opResult = na.Result{Err: err, Fate: na.NotRun}
		k.markFailed()
		k.cancelParts()
		return nil
	}
	k.openParts++
	return nil
}

// sendRequest sends msg and awaits the answer. Locked.
func (k *call) sendRequest(to na.Addr, msg []byte) error {
	spec := na.CallSpec{To: to, Tag: k.tag(), Msg: msg, Body: k.bodyBeside, Copy: k.in.isBorrowed, Bodies: true, By: k.deadline, OneWay: k.h.rpc.OneWay}
	if len(k.streams) > 0 {
		spec.Streams, spec.StreamsAt = k.streamEnds(), streamAt
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

// buildRequest returns the message that asks for the call, and where to send it. An input that does not fit one, with the room that
// the target has granted, goes beside it, and is lent when there is no room. Locked.
func (k *call) buildRequest() (msg []byte, to na.Addr, err error) {
	h := k.h
	req := request{codec: k.codec, meta: k.in.head - k.in.front, id: h.id, size: uint64(k.in.size())}
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
		k.reserveRoom()
	}
	req.room = k.room
	nctx, in := h.ctx.nctx, &k.in
	if to = h.addr; h.bound {
		to = nctx.Upper().Current(to)
	}
	k.bodyBeside = nil
	switch n := in.head + in.size(); {
	case n <= h.ctx.limits.MaxUnexpected:
		req.writeHeader(in.b)
		return in.b, to, nil
	case n <= na.MaxRoom && in.separate == nil:
		if bound, ok := nctx.Upper().ClaimRoom(to, n); ok {
			h.ctx.bodies.inline.Add(1)
			req.writeHeader(in.b)
			return in.b, bound, nil
		}
	case in.head <= h.ctx.limits.MaxUnexpected:
		if bound, ok := nctx.Upper().ClaimRoom(to, in.size()); ok {
			h.ctx.bodies.inline.Add(1)
			req.writeHeader(in.b)
			k.bodyBeside = in.payload()
			return in.b[:in.head], bound, nil
		}
	}
	req.flags |= flagMore
	req.writeHeader(in.b)
	to = nctx.Upper().Current(to) // the loan and the request go in the same session
	if msg, err = k.lendInput(to, h.ctx.limits.MaxUnexpected); err != nil {
		k.returnRoom()
	}
	return msg, to, err
}

// lendInput lends the input to the peer at to, and the metadata if it does not fit a message of limit bytes, and returns the message that says so.
// Locked.
func (k *call) lendInput(to na.Addr, limit int) (msg []byte, err error) {
	h := k.h
	k.in.ownBorrowed()
	body, head, flags := k.in.splitForLoan(k.in.front, limit)
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
