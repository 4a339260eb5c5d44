package na

import "fmt"

// A CallSpec describes a call, a single operation that sends a request and receives its response.
type CallSpec struct {
	To  Addr
	Tag Tag

	// Msg is the request, an unexpected message. It belongs to the operation until the operation
	// completes. If Msg is longer than MaxUnexpected, the caller must first claim room for its
	// length with ClaimRoom. If By is set, the remaining time is written into Msg when it is sent.
	Msg []byte
	By  Deadline

	// Body, if not nil, is sent separately from Msg and becomes Envelope.Body at the peer. It must
	// be longer than MaxUnexpected, and the caller must first claim room for its length with
	// ClaimRoom. It belongs to the operation until the operation completes. If Copy is set, Body is
	// copied instead, if possible to memory that the peer can read directly, and the caller may
	// reuse it when Call returns.
	Body []byte
	Copy bool

	// Buf receives the response, an expected message with tag Tag. A response that does not fit in
	// Buf but has at most Most bytes (limited to MaxRoom) is returned in Result.Envelope. If Bodies
	// is set, the response may have a body, and is then returned in Result.Envelope. If OneWay is
	// set, there is no response, and the operation completes when the request has been sent.
	Buf    []byte
	Most   int
	Bodies bool
	OneWay bool

	// Streams are the streams of the call, at most MaxStreams. Each must have been created for this
	// call by NewStream. They are numbered consecutively when the request is sent. The number of
	// the first is written to the 8 bytes of Msg at offset StreamsAt.
	Streams   []*Stream
	StreamsAt int
}

// claimLen returns the number of bytes for which the caller must have claimed room, or 0 if the
// request needs no room.
func (s *CallSpec) claimLen(limit int) int {
	switch {
	case s.Body != nil:
		return len(s.Body)
	case len(s.Msg) > limit:
		return len(s.Msg)
	}
	return 0
}

// Call sends a request and receives its response. It does not block. op completes exactly once:
//   - with the response;
//   - with the error that prevented the request from being sent, and Fate NotRun;
//   - with ErrTimeout, in the first Trigger after the deadline, whether or not the request was
//     sent; the peer is notified as described for AbandonCall;
//   - with ErrCanceled or ErrPeerLost.
//
// If the request was sent, Result.Addr, which is bound to its session, and Result.ID identify it
// for Withdraw. Otherwise Result.ID is 0. Result.Fate is also NotRun if the peer reported that it
// did not accept the request.
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

// checkSize returns an error if the request is too large to be sent even with room claimed.
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

// CancelIfUnsent cancels the Call of op if its request has not been sent. If the request has been
// sent, CancelIfUnsent does not cancel the call, and returns true with the address and ID of the
// request, which can be passed to Withdraw.
func (c upper) CancelIfUnsent(op *Op) (to Addr, id uint64, left bool) {
	if t, ok := op.markCanceling(); ok && c.state.Load() != ctxReleased {
		return c.ep.cancelIfUnsent(t)
	}
	return Addr{}, 0, false
}

// AbandonCall cancels the Call of op and, if the request has been sent, notifies the peer as
// Abandon does.
func (c upper) AbandonCall(op *Op) {
	if t, ok := op.markCanceling(); ok && c.state.Load() != ctxReleased {
		c.ep.abandonCall(t, ErrCanceled)
	}
}

// Answer sends msg to the sender of env, as SendExpectedLong does, and frees env. If the carrier
// can send msg immediately, Answer returns true and does not start op. Otherwise op completes as
// for SendExpected. If Answer returns an error, it has not freed env.
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

// SendExpectedBody sends an expected message with a body, as described for CallSpec.Body. If
// copied is set, the body is copied, as with CallSpec.Copy. The peer must have posted a receive
// that accepts bodies.
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
