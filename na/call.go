package na

import "fmt"

// A CallSpec is a request and the receive of its answer: one operation.
type CallSpec struct {
	To  Addr
	Tag Tag

	// Msg is the request, which is the operation's until its end: an unexpected message, long ones with a ClaimRoom before. One
	// with a By has the time that is left written into it when it leaves.
	Msg []byte
	By  Deadline

	// Body, if there is one, goes beside Msg, which it follows in the peer's Envelope. It is the operation's, too, needs a ClaimRoom
	// of its length, more than MaxUnexpected, before, and has left when Msg leaves. With Copy it is copied, if possible to where the
	// peer reads it, and the caller's again when Call returns.
	Body []byte
	Copy bool

	// Buf receives the answer, an expected message with Tag; one of up to Most bytes, MaxRoom at most, that does not fit comes in
	// Result.Envelope. With OneWay none is awaited: the operation ends when the request has left.
	// With Bodies an answer may have a body: then it comes in Result.Envelope, too.
	Buf    []byte
	Most   int
	Bodies bool
	OneWay bool

	// Streams are those of the call, up to MaxStreams, each made for it by NewStream. When the request leaves, their numbers begin; that of
	// the first is written to the 8 bytes of Msg at StreamsAt.
	Streams   []*Stream
	StreamsAt int
}

// claimLen is the length of what of a request needs a claim of room, 0 for nothing.
func (s *CallSpec) claimLen(limit int) int {
	switch {
	case s.Body != nil:
		return len(s.Body)
	case len(s.Msg) > limit:
		return len(s.Msg)
	}
	return 0
}

// Call sends a request and receives its answer. op ends once: with the answer; with what kept the request from leaving, and
// NotRun; with ErrTimeout in the first Trigger after the deadline, wherever the request is then, and the peer is told as by AbandonCall;
// with ErrCanceled; with ErrPeerLost. Of a request that has left Result.Addr, bound to its session, and Result.ID say where it is to be
// found, for Withdraw; ID is 0 of one that has not. Result.Fate is NotRun too of one that the peer says it has not taken.
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

// checkSize tells why a request cannot be sent, whatever room there is.
func (s *CallSpec) checkSize(limit int) error {
	switch {
	case len(s.Streams) > 0 && (len(s.Streams) > MaxStreams || s.StreamsAt < 0 || s.StreamsAt > len(s.Msg)-streamIDSize):
		return outOfRange("the message", int64(s.StreamsAt), streamIDSize, int64(len(s.Msg)))
	case len(s.Msg) > limit && (s.To.Session() == 0 || len(s.Msg) > MaxRoom || s.Body != nil):
		return tooLong(len(s.Msg), limit)
	case s.Body != nil && (s.To.Session() == 0 || len(s.Body) <= limit || len(s.Body) > MaxBody):
		return WithText(ErrMsgSize, fmt.Sprintf("body of %d bytes, want more than %d, at most %d, and room for it", len(s.Body), limit, MaxBody))
	}
	return nil
}

// CancelIfUnsent cancels the Call of op if its request has not left; otherwise it changes nothing and returns where that has gone.
func (c upper) CancelIfUnsent(op *Op) (to Addr, id uint64, left bool) {
	if t, ok := op.markCanceling(); ok && c.state.Load() != ctxReleased {
		return c.ep.cancelIfUnsent(t)
	}
	return Addr{}, 0, false
}

// AbandonCall cancels the Call of op, and lets the peer know if the request has left: see Abandon.
func (c upper) AbandonCall(op *Op) {
	if t, ok := op.markCanceling(); ok && c.state.Load() != ctxReleased {
		c.ep.abandonCall(t, ErrCanceled)
	}
}

// Answer is SendExpectedLong that answers the message of env, and Free of env, in one step. A message that leaves at once needs no
// operation: then left is true, and op idle. Otherwise op ends as SendExpected does. If there is an error env has not been freed.
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

// SendExpectedBody is SendExpected with a body beside msg, as CallSpec.Body is, with Copy if copied. The receive is one that takes bodies.
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
