package hg

import (
	"bytes"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A RespondFunc is called when the sending of one response has ended: it left, not that it arrived. One that could not leave,
// though the origin is there, may be given again; when nobody does, the last Close answers with the error.
type RespondFunc func(h *Handle, err error)

// A service is the target's side of a handle. Handle.mu guards what changes after the handler began.
type service struct {
	h        *Handle
	env      *na.Envelope // nil once the message is not needed any more
	tag      na.Tag
	oneWay   bool
	input    []byte
	meta     []byte // that came with it
	codec    uint8  // of input
	more     bool   // it is at the origin, to be fetched once the authorizer has agreed,
	body     na.Key // with this
	allowed  bool   // the authorizer has agreed
	dispatch Task
	runs     atomic.Pointer[RPC] // what the handler that began is of
	admitted bool                // it has room in Context.load
	peerLoad *atomic.Int64

	deadline  time.Duration // by Context.Now; 0 when there is none
	pull      *pull         // fetches the input
	forgotten bool          // the program has let go of it unanswered, and may use it all the same: it serves no other request
	alarm     *alarm        // rings at the deadline; nil until somebody would hear it
	handling  *handling     // behind Ctx; nil until that is asked for

	answer int    // how far the response is
	retry  bool   // it was canceled before it left, or could not leave: once its callback runs another may be given
	failed bool   // it is an error response
	tries  int    // how many of these could not be sent
	said   Meta   // to go with the output
	out    []byte // header, metadata and output
	head   int    // the bytes of the first two
	msg    []byte // that says where the output is
	send   *na.Op
	sent   na.Result
	cb     RespondFunc
	begun  time.Duration // when the response was given, if cb is set
	done   Task
	loan   *loan

	waits      bool    // for room; Context.load.mu guards it
	next, prev *Handle // then; next also in the list of spare handles
}

// How far a response is. Who finds unanswered may answer.
const (
	unanswered = iota
	sending    // it is on its way
	answered   // it has left, or cannot any more
)

// maxSpare bounds the spare handles of a context.
const maxSpare = 1024

// newTarget returns the handle of a request, with the reference that its handler will have.
func (c *Context) newTarget(env *na.Envelope) *Handle {
	c.mu.Lock()
	h := c.targets
	if h != nil {
		c.targets = h.service.next
		c.spare--
		c.enlist(h)
	}
	c.mu.Unlock()
	if h == nil {
		h = &Handle{ctx: c, service: &service{}}
		s := h.service
		s.h = h
		s.dispatch.Init(h.run, nil)
		s.done.Init(s.finish, nil)
		s.send = c.nctx.NewOp(s.onSent)
		c.mu.Lock()
		c.enlist(h)
		c.mu.Unlock()
	}
	s := h.service
	s.found(evArrived)
	s.env, s.tag, h.addr, s.peerLoad = env, env.Tag, env.From, env.Load
	h.refs.Store(1)
	s.note(evArrived)
	return h
}

// lastReference answers what nobody answered, or recycles the handle: nothing is under way then. One that the handler let go
// of without an answer is not used again, for whoever meant to answer may still try.
func (h *Handle) lastReference() {
	s := h.service
	h.mu.Lock()
	if s.answer == unanswered && !s.oneWay && s.runs.Load() != nil {
		s.forgotten = true
	}
	if s.answer == unanswered && !s.oneWay && !h.ctx.nctx.Closing() {
		s.noted(evSilent)
		h.mu.Unlock()
		fate := na.NotRun
		if s.runs.Load() != nil {
			fate = na.Ran
		}
		why, text := ErrNoResponse, ErrNoResponse.Error()
		if err := s.sent.Err; err != nil && na.CodeOf(err) != ErrCanceled {
			why, text = na.CodeOf(err), "the response could not be sent: "+err.Error()
		}
		h.refs.Store(1)
		h.answerError(failure{code: why, fate: fate, text: text})
		h.mu.Lock()
		if s.answer == unanswered { // no response could be sent: the peer is gone
			s.found(evGivenUp)
			s.answer = answered
			s.note(evGivenUp)
		}
		h.mu.Unlock()
		h.release()
		return
	}
	s.found(evLastReference)
	s.freeInput()
	c := h.ctx
	if s.more {
		c.nctx.GiveBack(h.addr, s.body)
	}
	c.leave(h)
	alarm, handling := s.alarm, s.handling
	keep := s.out
	if cap(keep) > maxKept || s.loan != nil {
		keep = nil
	}
	s.reset(keep)
	s.note(evLastReference)
	forgotten := s.forgotten
	if !forgotten {
		h.data, h.rpc = nil, nil
	}
	h.mu.Unlock()
	if alarm != nil {
		alarm.op.Cancel()
	}
	if handling != nil {
		handling.over()
	}
	c.mu.Lock()
	c.delist(h)
	if c.spare < maxSpare && !forgotten {
		s.next, c.targets = c.targets, h
		c.spare++
	}
	c.mu.Unlock()
}

// reset makes s ready for another request. What newTarget sets, and what nobody reads before it was set, stays: the
// record is large, and this is done for each request.
func (s *service) reset(out []byte) {
	s.oneWay, s.more, s.allowed, s.retry, s.failed, s.waits = false, false, false, false, false, false
	s.answer, s.tries = unanswered, 0
	s.runs.Store(nil)
	s.deadline, s.pull, s.alarm, s.handling, s.loan, s.cb = 0, nil, nil, nil, nil, nil
	s.out, s.said, s.next, s.prev = out, Meta{}, nil, nil
	if s.sent.Err != nil {
		s.sent = na.Result{}
	}
}

// freeInput ends the use of the request's bytes.
func (s *service) freeInput() {
	if s.env != nil {
		s.env.Free()
		s.env = nil
	}
	s.input, s.meta = nil, nil
}

// Input decodes the request's input into v. A handler that returns the error answers BadInput.
func (h *Handle) Input(v any) error {
	b, err := h.InputRaw()
	if err != nil {
		return err
	}
	if err := h.rpc.Codec.Decode(b, v); err != nil {
		return &Error{Op: "input of", RPC: h.Name(), Peer: h.addr, Fate: na.Ran, Err: &codedError{BadInput, err}}
	}
	return nil
}

// InputRaw returns the request's encoded input. The bytes are valid until Respond, or the last reference.
func (h *Handle) InputRaw() ([]byte, error) {
	if h.service == nil {
		return nil, misuse("input of", h.Name(), h.Addr(), ErrInvalid, "the handle belongs to the origin, it has output")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.service.env == nil {
		return nil, misuse("input of", h.Name(), h.addr, ErrInvalid, "the request has been answered, its input is gone")
	}
	return h.service.input, nil
}

// Meta returns the metadata that came with the request. It is empty once the request has been answered.
func (h *Handle) Meta() Meta {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.service == nil || h.service.env == nil {
		return Meta{}
	}
	return Meta{bytes.Clone(h.service.meta)}
}

// SetOutputMeta has the answer carry m. The error matches ErrAnswered when it has been given, and ErrOverflow when
// na.Config.Eager is too small for m.
func (h *Handle) SetOutputMeta(m Meta) error {
	if err := h.ctx.fits(m); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.service == nil || h.service.answer != unanswered {
		return misuse("respond", h.Name(), h.addr, ErrAnswered, "the request has been answered")
	}
	h.service.said = m
	return nil
}

// Respond encodes out with the RPC's codec and sends it to the origin. It returns without waiting; out is the caller's
// again then, and the input is gone. cb, which may be nil, is called in Trigger when the response has left. An error
// means that nothing was sent and cb will not run: it matches ErrAnswered when the request was answered before,
// ErrUnsupported for a one-way RPC, ErrOverflow when out is larger than Config.MaxOutput, or is the codec's.
func (h *Handle) Respond(out any, cb RespondFunc) error {
	return h.respond(response{fate: na.Ran}, cb, func(b []byte) ([]byte, uint8, error) {
		b, err := appendWith(h.rpc.Codec, b, out)
		return b, h.rpc.Codec.ID(), err
	})
}

// RespondRaw is Respond for output that is bytes already. They may be the input.
func (h *Handle) RespondRaw(out []byte, cb RespondFunc) error {
	return h.respond(response{fate: na.Ran}, cb, func(b []byte) ([]byte, uint8, error) { return append(b, out...), codec.RawID, nil })
}

// RespondError answers with err, as a handler does that returns it: the origin's callback gets a *RemoteError with the
// outermost code in err, or ErrHandler, and the text of err.
func (h *Handle) RespondError(err error, cb RespondFunc) error {
	if err == nil {
		return misuse("respond", h.Name(), h.Addr(), ErrInvalid, "the error to respond with is nil")
	}
	return h.respondFailure(failureOf(err), cb)
}

// answerError answers if nobody has; what cannot be answered is counted.
func (h *Handle) answerError(f failure) {
	if h.service.oneWay {
		h.ctx.dropped.Add(1)
		return
	}
	_ = h.respondFailure(f, nil)
}

// respondFailure answers with an error response: it is cut rather than lent.
func (h *Handle) respondFailure(f failure, cb RespondFunc) error {
	return h.respond(response{code: f.code, fate: f.fate}, cb, func(b []byte) ([]byte, uint8, error) {
		detail, id := h.encodeDetail(f.detail)
		room := h.ctx.nctx.Limits().MaxExpected - len(b) - 2
		f.text = f.text[:min(len(f.text), room, maxErrorText)]
		if len(f.text)+len(detail) > room {
			detail = nil
		}
		return appendFailure(b, f.text, detail), id, nil
	})
}

// encodeDetail encodes what goes with an error. What cannot go is logged.
func (h *Handle) encodeDetail(v any) (b []byte, id uint8) {
	if v == nil || h.rpc == nil {
		return nil, codec.RawID
	}
	b, err := h.rpc.Codec.Append(nil, v)
	if err == nil && len(b) > maxDetail {
		err = fmt.Errorf("%d bytes, there may be %d: %w", len(b), maxDetail, ErrOverflow)
	}
	if err != nil {
		slog.Warn("detail of an error left out", "rpc", h.Name(), "error", err)
		return nil, codec.RawID
	}
	return b, h.rpc.Codec.ID()
}

// respond answers with what encode gives, which may be user code: it runs with no lock held, before anything is changed.
func (h *Handle) respond(resp response, cb RespondFunc, encode func([]byte) ([]byte, uint8, error)) error {
	s := h.service
	if s == nil {
		return misuse("respond", h.Name(), h.Addr(), ErrInvalid, "the handle belongs to the origin")
	}
	if !h.hold() { // until it is encoded: the handler may return meanwhile
		return misuse("respond", h.Name(), h.Addr(), ErrAnswered, "the request has ended, and its handle with it")
	}
	defer h.release()
	b := s.room()
	head := len(b)
	b, id, err := encode(b)
	h.mu.Lock()
	defer h.mu.Unlock()
	defer s.note(s.found(evRespond))
	switch {
	case s.oneWay:
		return misuse("respond", h.Name(), h.addr, ErrUnsupported, "the RPC is one-way")
	case s.answer != unanswered:
		return misuse("respond", h.Name(), h.addr, ErrAnswered, "the request has been answered")
	case err == nil:
		resp.codec = id
		s.out, s.head = b, head
		err = s.transmit(resp, cb)
	}
	if err != nil {
		return &Error{Op: "respond", RPC: h.Name(), Peer: h.addr, Fate: na.Ran, Err: bare(err)}
	}
	return nil
}

// room returns a buffer for an output, with header and metadata.
func (s *service) room() []byte {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	var b []byte
	if s.answer == unanswered && s.loan == nil {
		b, s.out = s.out, nil
	}
	if cap(b) < responseSize {
		b = make([]byte, 0, 256)
	}
	return append(b[:responseSize], s.said.b...)
}

// transmit sends the response in s.out. Locked.
func (s *service) transmit(resp response, cb RespondFunc) error {
	h := s.h
	size := int64(len(s.out) - s.head)
	if limit := h.ctx.class.cfg.MaxOutput; size > limit {
		return na.WithText(ErrOverflow, fmt.Sprintf("output of %d bytes, Config.MaxOutput is %d", size, limit))
	}
	if size == 0 {
		resp.codec = codec.NoBytesID
	}
	resp.size, resp.meta = uint64(size), s.head-responseSize
	resp.put(s.out)
	msg := s.out
	if len(msg) > h.ctx.nctx.Limits().MaxExpected {
		var err error
		if msg, err = s.lendOutput(); err != nil {
			return err
		}
	}
	s.failed, s.cb, s.sent = resp.code != na.OK, cb, na.Result{}
	if cb != nil {
		s.begun = h.ctx.Now()
	}
	h.refs.Add(1) // until the response has left and its callback has run
	if err := h.ctx.nctx.SendExpected(s.send, h.addr, s.tag, msg); err != nil {
		h.refs.Add(-1)
		if s.loan != nil {
			s.loan.op.Cancel()
		}
		return err
	}
	s.freeInput()
	s.answer = sending
	return nil
}

// lendOutput lends the body in s.out and returns the message that says so. Locked.
func (s *service) lendOutput() (msg []byte, err error) {
	h := s.h
	var key na.Key
	h.refs.Add(1) // until the loan has ended
	if s.loan, key, err = h.ctx.lend(h.addr, s.tag, s.out[s.head:], s.onLoanEnded); err != nil {
		h.refs.Add(-1)
		return nil, err
	}
	s.msg = append(s.msg[:0], s.out[:s.head]...)
	s.msg[1] |= flagMore
	s.msg = key.Append(s.msg)
	return s.msg, nil
}

// resend gives a peer that takes shorter messages than this side what it can take: a loan, or fewer words of an error.
// Locked.
func (s *service) resend() (err error) {
	h := s.h
	msg := s.out
	switch {
	case s.failed && len(msg) > minMessage:
		msg = shortened(msg)
		s.out, s.head = msg, responseSize
	case s.failed, s.loan != nil:
		return na.ErrMsgSize
	default:
		if msg, err = s.lendOutput(); err != nil {
			return err
		}
	}
	if err = h.ctx.nctx.SendExpected(s.send, h.addr, s.tag, msg); err != nil && s.loan != nil {
		s.loan.op.Cancel()
	}
	return err
}

// shortened leaves of an error response what any peer takes.
func shortened(msg []byte) []byte {
	resp, _, payload, _ := parseResponse(msg)
	text := resp.remote(payload, nil).Text
	b := appendFailure(msg[:responseSize], text[:min(len(text), minMessage-responseSize-2)], nil)
	resp.codec, resp.meta, resp.size = codec.RawID, 0, uint64(len(b)-responseSize)
	resp.put(b)
	return b
}

// maxTries is how often an error response is sent that says that the one before could not be. Then the session ends, which
// the origin hears of, too.
const maxTries = 16

// minMessage is the shortest that a peer may limit its messages to: the lower bound of na.Config.Eager.
const minMessage = 256

func (h *Handle) cancelResponse() {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.service
	s.noted(evCancel)
	if s.answer != unanswered {
		s.send.Cancel()
	}
}

func (s *service) onSent(_ *na.Op, r na.Result) {
	h := s.h
	h.mu.Lock()
	e := s.found(sendEvent(r))
	if e == evTooLong {
		if r.Err = s.resend(); r.Err == nil {
			s.note(e)
			h.mu.Unlock()
			return
		}
	}
	s.sent, s.answer = r, answered
	if r.Err != nil {
		// It may be answered again, and lastReference does so: the origin waits.
		canceled := na.CodeOf(r.Err) == ErrCanceled
		s.retry = r.Fate == na.NotRun && (canceled || h.ctx.nctx.Connected(h.addr))
		if s.retry && s.failed && !canceled {
			if s.tries++; s.tries == maxTries {
				h.ctx.nctx.Disconnect(h.addr, na.WithText(ErrAgain, fmt.Sprintf("no answer to it can be sent: %v", bare(r.Err))))
			}
		}
		if s.loan != nil {
			s.loan.op.Cancel()
		}
	}
	quiet := s.cb == nil
	if quiet && s.retry {
		s.answerAgain()
	}
	s.note(e)
	h.mu.Unlock()
	if quiet {
		h.release()
		return
	}
	_ = h.ctx.PostTask(&s.done)
}

// answerAgain lets another response be given. Locked.
func (s *service) answerAgain() { s.answer, s.retry = unanswered, false }

// onLoanEnded hears of the loan of a response that was recalled, too, when another is on its way already.
func (s *service) onLoanEnded(l *loan, _ na.Result) {
	h := s.h
	h.mu.Lock()
	s.found(evLoanEnded)
	if s.loan == l {
		s.loan = nil
	}
	s.note(evLoanEnded)
	h.mu.Unlock()
	h.release()
}

// finish runs in Trigger.
func (s *service) finish(any) {
	h := s.h
	h.mu.Lock()
	s.found(evTrigger)
	cb, err, begun := s.cb, s.sent.Err, s.begun
	s.cb = nil
	if s.retry {
		s.answerAgain()
	}
	s.note(evTrigger)
	h.mu.Unlock()
	if err != nil {
		err = &Error{Op: "respond", RPC: h.Name(), Peer: h.addr, Took: h.ctx.since(begun), Fate: na.Ran, Err: bare(err)}
	}
	defer h.release() // deferred: the callback may panic, or end the goroutine
	cb(h, err)
}
