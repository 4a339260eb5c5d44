package na

// A CallSpec is a request and the receive of its answer: one operation.
type CallSpec struct {
	To  Addr
	Tag Tag

	// Msg is the request, which is the operation's until its end: an unexpected message, long ones with a ClaimRoom before. One
	// with a By has the time that is left written into it when it leaves.
	Msg []byte
	By  Deadline

	// Buf receives the answer, an expected message with Tag; one of up to Most bytes, MaxRoom at most, that does not fit comes in
	// Result.Envelope. With OneWay none is awaited: the operation ends when the request has left.
	Buf    []byte
	Most   int
	OneWay bool
}

// Call sends a request and receives its answer. op ends once: with the answer; with what kept the request from leaving, and
// NotRun; with ErrTimeout in the first Trigger after the deadline, wherever the request is then, and the peer is told as by AbandonCall;
// with ErrCanceled; with ErrPeerLost. Of a request that has left Result.Addr, bound to its session, and Result.ID say where it is to be
// found, for Withdraw; ID is 0 of one that has not. Result.Fate is NotRun too of one that the peer says it has not taken.
func (c *Context) Call(op *Op, s CallSpec) error {
	if limit := c.limits.MaxUnexpected; len(s.Msg) > limit && (s.To.Session() == 0 || len(s.Msg) > MaxRoom) {
		return c.refuse(kindCall, s.To, tooLong(len(s.Msg), limit))
	}
	t, err := c.startCall(op, &s)
	if err != nil {
		if len(s.Msg) > c.limits.MaxUnexpected {
			c.ep.ReturnRoom(s.To, len(s.Msg))
		}
		return err
	}
	s.Most = min(s.Most, MaxRoom)
	c.ep.Call(t, s)
	return nil
}

func (c *Context) startCall(op *Op, s *CallSpec) (Ticket, error) {
	if s.By.At != 0 && (s.By.Field < 0 || s.By.Field > len(s.Msg)-4) {
		return Ticket{}, c.refuse(kindCall, s.To, outside("the message", int64(s.By.Field), 4, int64(len(s.Msg))))
	}
	return c.startTo(op, kindCall, s.To)
}

// Recall cancels the Call of op if its request has not left; otherwise it changes nothing and returns where that has gone.
func (c *Context) Recall(op *Op) (to Addr, id uint64, left bool) {
	if t, ok := op.canceling(); ok && c.state.Load() != ctxReleased {
		return c.ep.Recall(t)
	}
	return Addr{}, 0, false
}

// AbandonCall cancels the Call of op, and lets the peer know if the request has left: see Abandon.
func (c *Context) AbandonCall(op *Op) {
	if t, ok := op.canceling(); ok && c.state.Load() != ctxReleased {
		c.ep.GiveUp(t, ErrCanceled)
	}
}

// Answer is SendExpectedLong that answers the message of env, and Free of env, in one step. A message that leaves at once needs no
// operation: then left is true, and op idle. Otherwise op ends as SendExpected does. If there is an error env has not been freed.
func (c *Context) Answer(op *Op, env *Envelope, tag Tag, msg []byte, most int) (left bool, err error) {
	to := env.From
	if limit := max(c.limits.MaxExpected, min(most, MaxRoom)); len(msg) > limit {
		return false, c.refuse(kindSendExpected, to, tooLong(len(msg), limit))
	}
	if c.Closing() {
		return false, c.refuse(kindSendExpected, to, ErrClosed)
	}
	left, failed := c.ep.Answer(env, to, tag, msg)
	if left {
		return true, nil
	}
	t, err := c.startTo(op, kindSendExpected, to)
	if err != nil {
		return false, err
	}
	if failed != nil {
		t.Finish(Result{Err: failed, Fate: NotRun})
	} else {
		c.ep.SendExpected(t, to, tag, msg, most)
	}
	env.Free()
	return false, nil
}
