package hg

import (
	"fmt"
	"log/slog"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A RespondFunc is called in Trigger when the operation that sends a response has completed. A nil
// err means that the response has been sent, not that it has arrived. If the response was canceled,
// or could not be sent although the origin is connected, the callback may give another response. If
// it gives none, the library responds with the error.
type RespondFunc func(r Request, err error)

// SetOutputMeta sets the metadata of the response. The error matches na.ErrAnswered if the request
// has been answered. An error response omits m if it does not fit in the message.
func (r Request) SetOutputMeta(m Metadata) error {
	s, ok := r.lockService()
	if !ok {
		return endedError("respond")
	}
	defer s.mu.Unlock()
	if s.phase > serviceRejected {
		return misuseError("respond", s.rpcName(), s.addr, na.ErrAnswered, "the request has been answered")
	}
	s.outputMeta = m
	return nil
}

// Respond encodes out with the RPC's codec and sends it to the origin. It does not block and does
// not retain out after it returns. The input must not be used after Respond returns. cb, which may
// be nil, is called in Trigger when the response has been sent. If Respond returns an error,
// nothing was sent and cb is not called. The error matches
//
//   - na.ErrAnswered if the request has been answered or has ended;
//   - ErrUnsupported for a one-way RPC;
//   - ErrOverflow if out is larger than Config.MaxOutput;
//   - ErrAgain or ErrNoMemory if a limit is reached;
//   - the codec's error otherwise.
//
// After one of the last three errors, a running handler may give another response or call Detach.
// Otherwise the library responds with the error.
func (r Request) Respond(out any, cb RespondFunc) error {
	s, ok := r.lockService()
	if !ok {
		return endedError("respond")
	}
	d, rpc := s.newDraftLocked(na.OK), s.rpc
	s.mu.Unlock()
	d.reserveForEncoding()
	b, err := appendWith(rpc.Codec, d.b, out) // unlocked, because the codec may be user code
	if err != nil {
		err = fmt.Errorf("encode response: %w", err)
	} else {
		d.b = b
	}
	if s, ok = r.lockService(); !ok {
		d.releaseLarge()
		return endedError("respond")
	}
	return s.respond(response{fate: na.Ran, codec: rpc.Codec.ID()}, cb, d, err)
}

// answerOnReturn implements hghook.AnswerOnReturn. Like decodePlain it needs no lock, because no
// other goroutine responds to the request while the handler runs.
func (r *Request) answerOnReturn(out any) error {
	s := r.s
	d := s.newDraftLocked(na.OK)
	d.reserveForEncoding()
	b, err := appendWith(s.rpc.Codec, d.b, out)
	if err != nil {
		d.releaseLarge()
		return &Error{Op: "respond", RPC: s.rpcName(), Peer: s.addr, Fate: na.Ran, Err: fmt.Errorf("encode response: %w", err)}
	}
	d.b = b
	s.draft, s.hasDraft = d, true
	return nil
}

// RespondRaw is like Respond for encoded output. out may be the request's input.
func (r Request) RespondRaw(out []byte, cb RespondFunc) error {
	if len(out) > na.MaxRoom-responseSize {
		return r.respond(response{fate: na.Ran}, cb, func(d draft, _ *RPC, _ int) (draft, uint8, error) {
			d.borrowPayload(out)
			return d, codec.EncodedID, nil
		})
	}
	s, ok := r.lockService()
	if !ok {
		return endedError("respond")
	}
	d := s.newDraftLocked(na.OK)
	d.b = append(d.b, out...)
	return s.respond(response{fate: na.Ran, codec: codec.EncodedID}, cb, d, nil)
}

// RespondError responds with err as if the handler had returned it. The origin receives a
// *RemoteError with the text of err and the outermost code in err, or ErrHandler if err has no
// code.
func (r Request) RespondError(err error, cb RespondFunc) error {
	if err == nil {
		return misuseError("respond", r.Name(), r.Peer(), ErrInvalid, "the error to respond with is nil")
	}
	return r.respondFailure(failureOf(err), cb)
}

// respondFailure sends an error response. Text and detail are truncated to fit in a message, and
// are never lent.
func (r Request) respondFailure(f errorBody, cb RespondFunc) error {
	resp := response{code: f.code, fate: f.fate, text: f.text}
	if f.byLibrary {
		resp.flags = flagByLibrary
	}
	return r.respond(resp, cb, func(d draft, rpc *RPC, room int) (draft, uint8, error) {
		detail, id := encodeDetail(r.s.ctx.class.logger(), rpc, f.detail)
		text := frame.CutText(f.text, min(room, maxErrorText))
		if len(text)+len(detail) > room {
			detail = nil
		}
		d.b = appendFailure(d.b, text, detail)
		return d, id, nil
	})
}

// textRoomLocked returns the number of bytes that an error's text and detail may occupy in a
// message that already contains b. The caller must hold s.mu.
func (s *service) textRoomLocked(b []byte) int {
	return max(s.ctx.limits.MaxExpected, s.maxInline) - len(b) - 2
}

// encodeDetail returns the encoded detail v of an error and the ID of its codec. If the detail
// cannot be sent, encodeDetail logs the reason and returns no bytes.
func encodeDetail(log *slog.Logger, rpc *RPC, v any) (b []byte, id uint8) {
	if v == nil || rpc == nil {
		return nil, codec.EncodedID
	}
	var why any
	func() {
		defer func() {
			if p := recover(); p != nil {
				why = p
			}
		}()
		var err error
		if b, err = rpc.Codec.Append(nil, v); err != nil {
			why = err
		} else if len(b) > maxDetail {
			why = fmt.Sprintf("%d bytes, limit %d", len(b), maxDetail)
		}
	}()
	if why != nil {
		log.Warn("error detail dropped", "rpc", rpc.Name, "reason", why)
		return nil, codec.EncodedID
	}
	return b, rpc.Codec.ID()
}

// respond sends the response in the draft that encode returns. It calls encode with no locks held
// and before any state changes, because encode may call user code. The argument room of encode is
// the number of bytes available for an error's text and detail.
func (r Request) respond(resp response, cb RespondFunc, encode func(d draft, rpc *RPC, room int) (draft, uint8, error)) error {
	s, ok := r.lockService()
	if !ok {
		return endedError("respond")
	}
	d, rpc := s.newDraftLocked(resp.code), s.rpc
	room := s.textRoomLocked(d.b)
	s.mu.Unlock()
	d, id, err := encode(d, rpc, room)
	if s, ok = r.lockService(); !ok {
		d.releaseLarge()
		return endedError("respond")
	}
	resp.codec = id
	return s.respond(resp, cb, d, err)
}

// respond sends the response in d, unless err, the error from building d, is not nil. The caller
// must hold s.mu, which respond releases.
func (s *service) respond(resp response, cb RespondFunc, d draft, err error) error {
	defer s.unlock()
	return s.respondLocked(resp, cb, d, err)
}

// respondLocked is like respond, but does not release s.mu. The caller must hold s.mu.
func (s *service) respondLocked(resp response, cb RespondFunc, d draft, err error) error {
	if why := s.checkAnswerableLocked("respond"); why != nil {
		return why
	}
	if err == nil {
		s.draft = d
		err = s.transmitLocked(resp, cb)
	}
	if err != nil {
		s.sent.Err = unwrapNA(err) // if the handler does not respond, isOverLocked does, with this error
		return &Error{Op: "respond", RPC: s.rpcName(), Peer: s.addr, Fate: na.Ran, Err: s.sent.Err}
	}
	return nil
}

// checkAnswerableLocked returns an error if the program must not respond to the request now. The
// error names the operation op. The caller must hold s.mu.
func (s *service) checkAnswerableLocked(op string) error {
	switch {
	case s.oneWay:
		return misuseError(op, s.rpcName(), s.addr, ErrUnsupported, "the RPC is one-way")
	case s.phase < serviceRunning:
		return s.notRun(op)
	case s.phase != serviceRunning:
		return misuseError(op, s.rpcName(), s.addr, na.ErrAnswered, "the request has been answered")
	}
	return nil
}

// newDraftLocked returns a draft of an output that contains the header and metadata. Metadata that
// would leave too little room for an error is omitted. The caller must hold s.mu.
func (s *service) newDraftLocked(code na.Code) (d draft) {
	if s.phase <= serviceRejected && s.loan == nil {
		s.draft.releaseLarge()
		d.b, d.lastLargeLen, s.draft = s.draft.b, s.draft.lastLargeLen, draft{}
	}
	if cap(d.b) < responseSize {
		d.b = make([]byte, 0, 256)
	}
	if d.b = append(d.b[:responseSize], s.outputMeta.b...); code != na.OK && s.textRoomLocked(d.b) < minMessage/2 {
		d.b = d.b[:responseSize]
	}
	d.frontLen = len(d.b)
	return d
}

// An outputLimitError is the error of a response with an output larger than Config.MaxOutput.
type outputLimitError struct{ size, limit int64 }

func (e *outputLimitError) Error() string { return e.text("this process's") }

// text returns the text of e for a reader for whom the limit is whose, such as "the target's".
func (e *outputLimitError) text(whose string) string {
	return fmt.Sprintf("output of %d bytes exceeds %s hg.Config.MaxOutput of %d; use a qs.Sink or a bulk.Handle",
		e.size, whose, e.limit)
}

func (e *outputLimitError) Unwrap() error { return ErrOverflow }

// transmitLocked sends the response in s.draft. If it returns an error, the response was not sent
// and another one may be given. The caller must hold s.mu.
func (s *service) transmitLocked(resp response, cb RespondFunc) error {
	out := &s.draft
	size := int64(out.size())
	if limit := s.ctx.class.cfg.MaxOutput; size > limit && resp.code == na.OK {
		return &outputLimitError{size, limit}
	}
	if size == 0 {
		resp.codec = codec.NoBytesID
	}
	resp.size, resp.meta, resp.version = uint64(size), out.frontLen-responseSize, s.version
	resp.writeHeader(out.b)
	msg, body := out.b, []byte(nil)
	switch n := out.frontLen + out.size(); {
	case n <= s.ctx.limits.MaxExpected:
	case n <= s.maxInline && out.separate == nil:
		s.ctx.bodies.inline.Add(1)
	case s.claimRoomLocked():
		s.ctx.bodies.inline.Add(1)
		msg, body = out.b[:out.frontLen], out.payload()
	default:
		var err error
		if msg, err = s.lendOutputLocked(s.ctx.limits.MaxExpected); err != nil {
			return err
		}
	}
	s.failed, s.cb, s.sent = resp.code != na.OK, cb, na.Result{}
	if cb != nil {
		s.begun = s.ctx.Now()
	}
	left, err := s.postResponseLocked(msg, body)
	if err != nil {
		if s.loan != nil {
			s.loan.op.Cancel()
		}
		return err
	}
	s.observeAnswerLocked(resp.code, resp.fate, size, resp.text)
	s.freeInput()
	if s.hasReturned && len(s.streams) > 0 {
		s.endStreamsLocked()
	}
	if !left {
		s.setPhaseLocked(serviceSending)
		s.holds++ // held until the response has been sent and its callback has run
		return nil
	}
	s.settleAnswerLocked()
	if cb != nil {
		s.holds++ // held until its callback has run
		_ = s.ctx.post(&s.done)
	}
	return nil
}

// claimRoomLocked claims memory that the origin has reserved for an output sent separately from its
// message. It reports whether there was enough. The caller must hold s.mu.
func (s *service) claimRoomLocked() bool {
	if s.draft.frontLen > s.ctx.limits.MaxExpected {
		return false
	}
	_, ok := s.ctx.nctx.Upper().ClaimRoom(s.addr, s.draft.size())
	return ok
}

// postResponseLocked posts the response. It sets left if the response was sent immediately. The
// caller must hold s.mu.
func (s *service) postResponseLocked(msg, body []byte) (left bool, err error) {
	nctx := s.ctx.nctx
	if body != nil {
		if err = nctx.Upper().SendExpectedBody(s.send, s.addr, s.tag, msg, body, s.draft.isBorrowed); err == nil {
			if s.draft.dropBorrowed(); s.env != nil {
				s.env.Free()
				s.env = nil
			}
		}
		return false, err
	}
	if s.env == nil { // a canceled response has freed the envelope
		return false, nctx.SendExpectedLong(s.send, s.addr, s.tag, msg, s.maxInline)
	}
	if left, err = nctx.Upper().Answer(s.send, s.env, s.tag, msg, s.maxInline); err == nil {
		s.env = nil
	}
	return left, err
}

// lendOutputLocked lends the body in s.draft and returns the message that carries the key. If the
// metadata does not fit in a message of limit bytes, it is lent as well. The caller must hold s.mu.
func (s *service) lendOutputLocked(limit int) (msg []byte, err error) {
	var key na.Key
	s.draft.ownBorrowed()
	body, head, flags := s.draft.splitForLoan(responseSize, limit)
	s.ctx.bodies.countLent(s.draft.size())
	if s.loan, key, err = s.ctx.lendBody(s.addr, s.tag, body, account{session: s.addr.Session()}, s.onLoanEnded); err != nil {
		return nil, err
	}
	s.holds++ // held until the loan has ended
	s.msg = append(s.msg[:0], head...)
	s.msg[1] |= flags
	s.msg = key.Append(s.msg)
	return s.msg, nil
}

// resendShorterLocked sends the response again in a form accepted by a peer with a lower message
// limit, either with the output lent or with the error's text truncated. The caller must hold s.mu.
func (s *service) resendShorterLocked() (err error) {
	msg := s.draft.b
	switch {
	case s.failed && len(msg) > minMessage:
		msg = shortenError(msg)
		s.draft.b, s.draft.frontLen = msg, responseSize
	case s.failed, s.loan != nil, s.draft.droppedLen > 0:
		return na.ErrMsgSize
	default:
		if msg, err = s.lendOutputLocked(minMessage); err != nil {
			return err
		}
	}
	if err = s.ctx.nctx.SendExpectedLong(s.send, s.addr, s.tag, msg, s.maxInline); err != nil && s.loan != nil {
		s.loan.op.Cancel()
	}
	return err
}

// shortenError returns msg, an error response, truncated to the length that every peer accepts.
func shortenError(msg []byte) []byte {
	var resp response
	_, payload, _ := resp.parse(msg, nil)
	text := resp.remoteError(payload, nil).Text
	b := appendFailure(msg[:responseSize], frame.CutText(text, minMessage-responseSize-2), nil)
	resp.codec, resp.meta, resp.size = codec.EncodedID, 0, uint64(len(b)-responseSize)
	resp.writeHeader(b)
	return b
}

// maxTries limits the number of error responses to one request that may fail to be sent. Each of
// them reports the failure of the previous one. After the last failure the session is disconnected,
// which also ends the call at the origin.
const maxTries = 16

// minMessage is the message length that every peer accepts, which is the lower bound of
// na.Config.Eager.
const minMessage = 256

// Cancel cancels the response in flight, unless it has already been sent. It never blocks and does
// not wait for the origin. The callback still runs exactly once, with ErrCanceled if the response
// was not sent.
func (r Request) Cancel() {
	s, ok := r.lockService()
	if !ok {
		return
	}
	defer s.mu.Unlock()
	if s.phase == serviceSending {
		s.send.Cancel()
	}
}

func (s *service) onSent(_ *na.Op, r na.Result) (ran int) {
	s.mu.Lock()
	if na.CodeOf(r.Err) == na.ErrMsgSize {
		if r.Err = s.resendShorterLocked(); r.Err == nil {
			s.mu.Unlock()
			return 0
		}
	}
	s.sent = r
	if r.Err != nil && s.loan != nil {
		s.loan.op.Cancel()
	}
	switch canceled := na.CodeOf(r.Err) == ErrCanceled; {
	case r.Err == nil, r.Fate != na.NotRun, !canceled && !s.ctx.nctx.Connected(s.addr):
		s.settleAnswerLocked()
	// Another response may be given. If the program gives none, isOverLocked responds, because the
	// origin is waiting.
	default:
		s.setPhaseLocked(serviceRecalled)
		if s.failed && !canceled {
			if s.errorTries++; s.errorTries == maxTries {
				s.ctx.nctx.Disconnect(s.addr, na.WithText(ErrAgain, fmt.Sprintf("no answer to it can be sent: %v", unwrapNA(r.Err))))
			}
		}
	}
	if s.cb != nil {
		return s.runCallback()
	}
	s.allowAnswerLocked()
	s.holds--
	s.unlock()
	return 0
}

// settleAnswerLocked marks the request as answered, so that no further response can be given. The
// caller must hold s.mu.
func (s *service) settleAnswerLocked() {
	if s.loan != nil {
		s.setPhaseLocked(serviceLending)
	} else {
		s.setPhaseLocked(serviceAnswered)
	}
}

// allowAnswerLocked makes it possible to respond to s again if the previous response was recalled
// before it was sent. It does nothing otherwise. The caller must hold s.mu.
func (s *service) allowAnswerLocked() {
	switch {
	case s.phase != serviceRecalled:
	case s.handlerBegan:
		s.setPhaseLocked(serviceRunning)
	default:
		s.setPhaseLocked(serviceRejected)
	}
}

// onLoanEnded handles the end of the loan l of an output. l may belong to a recalled response while
// another response is in flight.
func (s *service) onLoanEnded(l *loan, _ na.Result) (ran int) {
	s.mu.Lock()
	if s.loan == l {
		if s.loan = nil; s.phase == serviceLending {
			s.setPhaseLocked(serviceAnswered)
		}
	}
	s.holds--
	s.unlock()
	return 0
}

// onResponseLeft runs the callback of a response that was sent as soon as it was posted.
func (s *service) onResponseLeft(any) (ran int) {
	s.mu.Lock()
	return s.runCallback()
}

// runCallback runs the callback of a response. The caller must hold s.mu, which runCallback
// releases.
func (s *service) runCallback() (ran int) {
	cb, err, r := s.cb, s.sent.Err, s.request()
	s.cb = nil
	s.allowAnswerLocked()
	if err != nil {
		err = &Error{Op: "respond", RPC: s.rpcName(), Peer: s.addr, Took: s.ctx.elapsedSince(s.begun), Fate: na.Ran, Err: unwrapNA(err)}
	}
	s.mu.Unlock()
	defer s.releaseHold() // deferred: the callback may panic or call runtime.Goexit
	cb(r, err)
	return 1
}
