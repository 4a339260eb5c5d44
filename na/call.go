package na

import "fmt"

// A CallSpec describes a call: one operation that sends a request and receives its answer.
type CallSpec struct {
	To  Addr
	Tag Tag

	// Msg is the request, an unexpected message. It belongs to the operation until that ends. A
	// message longer than MaxUnexpected requires a prior ClaimRoom of its length. If By is set, the
	// time that is left is written into Msg when it is sent.
	Msg []byte
	By  Deadline

	// Body, if not nil, is sent separately from Msg and becomes Envelope.Body at the peer. It is
	// longer than MaxUnexpected, requires a prior ClaimRoom of its length, and belongs to the
	// operation until that ends. With Copy it is copied, to memory that the peer can read if
	// possible, and belongs to the caller again when Call returns.
	Body []byte
	Copy bool

	// Buf receives the answer, an expected message with Tag. An answer that does not fit, of up to
	// Most bytes (at most MaxRoom), arrives in Result.Envelope. With Bodies an answer may have a
	// body, and arrives in Result.Envelope then. With OneWay there is no answer: the operation ends
	// when the request has been sent.
	Buf    []byte
	Most   int
	Bodies bool
	OneWay bool

	// Streams are the streams of the call, at most MaxStreams, each made for it by NewStream. They
	// get consecutive numbers when the request is sent; that of the first is written to the 8 bytes
	// of Msg at StreamsAt.
	Streams   []*Stream
	StreamsAt int
}

// claimLen returns how many bytes of a request need a claim of room, 0 for none.
func (s *CallSpec) claimLen(limit int) int {
	switch {
	case s.Body != nil:
		return len(s.Body)
	case len(s.Msg) > limit:
		return len(s.Msg)
	}
	return 0
}

// Call sends a request and receives its answer, without blocking. op ends once:
//   - with the answer
//   - with the error that kept the request from being sent, and Fate NotRun
//   - with ErrTimeout in the first Trigger after the deadline, wherever the request is; the peer is notified as by AbandonCall
//   - with ErrCanceled or ErrPeerLost
//
// If the request was sent, Result.Addr, bound to its session, and Result.ID identify it for
// Withdraw; otherwise ID is 0. Result.Fate is NotRun also if the peer has reported that it has not
// accepted the request.
func (c upper) Call(op *Op, s CallSpec) error {
	limit := c.limits.MaxUnexpected
	if err := s.checkSize(limit); err != nil {
		return c.refusedError(kindCall, s.To, err)
	}
	t, err := ticket{}, s.By.checkField(s.Msg)
	if err != nil {
		err = c.refusedError(kindCall, s.To, err)
	} else {
		t, err = c.startOp(op, kindCall, s.To)
	}
	if err != nil {
		if n := s.claimLen(limit); n > 0 {
			c.ep.returnRoom(s.To, n)
		}
		return err
	}
	s.Most = min(s.Most, MaxRoom)
	c.ep.startCall(t, s)
	return nil
}

// checkSize returns an error if a request is too large to be sent, regardless of room.
func (s *CallSpec) checkSize(limit int) error {
	switch {
	case len(s.Streams) > 0 && (len(s.Streams) > MaxStreams || s.StreamsAt < 0 || s.StreamsAt > len(s.Msg)-streamIDSize):
		return outOfRange("the message", int64(s.StreamsAt), streamIDSize, int64(len(s.Msg)))
	case len(s.Msg) > limit && (s.To.Session() == 0 || len(s.Msg) > MaxRoom || s.Body != nil):
		return tooLong(len(s.Msg), limit)
	case s.Body != nil && (s.To.Session() == 0 || len(s.Body) <= limit || len(s.Body) > MaxBody):
		return WithText(ErrMsgSize, fmt.Sprintf("body of %d bytes, want %d to %d, and room for it", len(s.Body), limit+1, MaxBody))
	}
	return nil
}

// CancelIfUnsent cancels the Call of op if its request has not been sent. Otherwise it changes
// nothing, and returns the address and the ID of the request, for Withdraw.
func (c upper) CancelIfUnsent(op *Op) (to Addr, id uint64, left bool) {
	if t, ok := op.markCanceling(); ok && c.state.Load() != ctxReleased {
		return c.ep.cancelIfUnsent(t)
	}
	return Addr{}, 0, false
}

// AbandonCall cancels the Call of op, and notifies the peer if the request has been sent: see
// Abandon.
func (c upper) AbandonCall(op *Op) {
	if t, ok := op.markCanceling(); ok && c.state.Load() != ctxReleased {
		c.ep.abandonCall(t, ErrCanceled)
	}
}

// Answer answers the message of env, as SendExpectedLong to its sender, and frees env, in one step.
// A message that can be sent at once needs no operation: left is true then, and op stays idle.
// Otherwise op ends as that of SendExpected. If Answer returns an error, env has not been freed.
func (c upper) Answer(op *Op, env *Envelope, tag Tag, msg []byte, most int) (left bool, err error) {
	to := env.From
	if limit := max(c.limits.MaxExpected, min(most, MaxRoom)); len(msg) > limit {
		return false, c.refusedError(kindSendExpected, to, tooLong(len(msg), limit))
	}
	if c.Closing() {
		return false, c.refusedError(kindSendExpected, to, ErrClosed)
	}
	left, failed := c.ep.sendAnswer(env, to, tag, msg, most)
	if left {
		return true, nil
	}
	t, err := c.startOp(op, kindSendExpected, to)
	if err != nil {
		return false, err
	}
	if failed != nil {
		t.finish(Result{Err: failed, Fate: NotRun})
	} else {
		c.ep.startSendExpected(t, to, tag, msg, nil, false, most)
	}
	env.Free()
	return false, nil
}

// SendExpectedBody sends an expected message with a body, as CallSpec.Body, with Copy if copied is
// true. The receive at the peer must be one that takes bodies.
func (c upper) SendExpectedBody(op *Op, to Addr, tag Tag, msg, body []byte, copied bool) error {
	s := CallSpec{To: to, Msg: msg, Body: body}
	if err := s.checkSize(c.limits.MaxExpected); err != nil {
		return c.refusedError(kindSendExpected, to, err)
	}
	t, err := c.startOp(op, kindSendExpected, to)
	if err != nil {
		c.ep.returnRoom(to, len(body))
		return err
	}
	c.ep.startSendExpected(t, to, tag, msg, body, copied, 0)
	return nil
}
