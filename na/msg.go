package na

import (
	"errors"
	"fmt"
	"time"
)

// A Tag distinguishes the expected messages of one peer. Unexpected messages carry one too.
type Tag uint64

// Lookup resolves the text of an address, for example "tcp://node7:9000". op ends with Result.Addr,
// and may be canceled. Lookup does not connect: the first operation with the address does.
func (c *Context) Lookup(op *Op, text string) error {
	t, err := c.startOp(op, kindLookup, Addr{})
	if err != nil {
		return err
	}
	c.ep.startLookup(t, text)
	return nil
}

// SendUnexpected sends buf, at most Limits().MaxUnexpected bytes, to the peer's RecvUnexpected. buf
// belongs to op until its callback runs. A longer message, up to MaxRoom bytes, requires a prior
// ClaimRoom; without it op ends with ErrMsgSize.
func (c *Context) SendUnexpected(op *Op, to Addr, tag Tag, buf []byte) error {
	return c.SendUnexpectedBy(op, to, tag, buf, Deadline{})
}

// SendUnexpectedBy sends buf as SendUnexpected does, with a deadline. A message that has to wait
// for an envelope or a connection, and whose turn comes after the deadline, is not sent: op ends
// with ErrTimeout and NotRun. To end op at the deadline in any case, start a Timer and cancel op.
func (c *Context) SendUnexpectedBy(op *Op, to Addr, tag Tag, buf []byte, by Deadline) error {
	if limit := c.limits.MaxUnexpected; len(buf) > limit && (to.Session() == 0 || len(buf) > MaxRoom) {
		return c.refusedError(kindSendUnexpected, to, tooLong(len(buf), limit))
	}
	t, err := ticket{}, by.checkField(buf)
	if err != nil {
		err = c.refusedError(kindSendUnexpected, to, err)
	} else {
		t, err = c.startOp(op, kindSendUnexpected, to)
	}
	if err != nil {
		if len(buf) > c.limits.MaxUnexpected {
			c.ep.returnRoom(to, len(buf))
		}
		return err
	}
	c.ep.startSendUnexpected(t, to, tag, buf, by)
	return nil
}

// RecvUnexpected receives the oldest unexpected message. op ends with Result.Envelope, which the
// callback owns.
func (c *Context) RecvUnexpected(op *Op) error {
	c.class.Serve()
	t, err := c.startOp(op, kindRecvUnexpected, Addr{})
	if err != nil {
		return err
	}
	c.ep.startRecvUnexpected(t)
	return nil
}

// Withdraw asks the peer to destroy the unexpected message that a SendUnexpected has sent; to and
// id are Addr and ID of its Result. It uses no envelope. op may be canceled; the peer may have
// destroyed the message nevertheless. op ends
//
//   - with nil if the message was destroyed before it was accepted: it has had, and will have, no effect
//   - with ErrTooLate if it had been accepted
//   - with ErrPeerLost if the session ended first: the fate of the message is unknown
//   - with ErrUnsupported if the peer cannot do it
func (c *Context) Withdraw(op *Op, to Addr, id uint64) error {
	t, err := c.startOp(op, kindWithdraw, to)
	if err != nil {
		return err
	}
	c.ep.startWithdraw(t, to, id)
	return nil
}

// Abandon notifies the peer that the answer to an unexpected message is not needed any more; to and
// id are Addr and ID of the Result of its SendUnexpected. If the message was not accepted it is
// destroyed; otherwise the peer's OnAbandon is called. Abandon is best effort, and has no
// completion.
func (c upper) Abandon(to Addr, id uint64) {
	if !c.Closing() {
		c.ep.abandonRequest(to, id)
	}
}

var errNoReason = errors.New("session closed by the program")

// Connected reports whether the session that peer is bound to is up, or the session with that name
// if peer is not bound.
func (c *Context) Connected(peer Addr) bool { return c.ep.isConnected(peer) }

// Disconnect ends the session that peer is bound to, or the session with that name if peer is not
// bound, or the attempt to make one, with err as the reason. Operations with the peer end with
// ErrPeerLost. A later operation connects again.
func (c *Context) Disconnect(peer Addr, err error) {
	if err == nil {
		err = errNoReason
	}
	if !c.Closing() {
		c.ep.disconnectSession(peer, err)
	}
}

// Probe asks the context at to whether its program calls Progress and Trigger, and whether it is
// ready. It connects if there is no session, and does not block. op ends
//
//   - with nil if the peer calls Trigger and is ready
//   - with ErrNotReady if it calls Trigger and is not ready (Class.SetReady)
//   - with ErrDraining if it calls Trigger and shuts down
//   - with ErrTimeout if timeout, if positive, has passed without an answer: Trigger is not called, or does not return
//   - with ErrUnreachable or ErrPeerLost if there is no session
//   - with ErrAgain if 1024 probes of the peer are in flight
//
// A probe needs no envelope, and no limit on requests applies to it. Result.Fate is NotRun.
func (c *Context) Probe(op *Op, to Addr, timeout time.Duration) error {
	t, err := c.startOp(op, kindProbe, to)
	if err != nil {
		return err
	}
	by := Deadline{}
	if timeout > 0 {
		by.At = c.Now() + min(timeout, maxTime)
	}
	c.ep.startProbe(t, to, by)
	return nil
}

// Timer ends op with nil after d, in the next Progress and Trigger. op may be canceled.
func (c *Context) Timer(op *Op, d time.Duration) error {
	return c.Upper().TimerAt(op, c.Now()+min(max(d, 0), maxTime))
}

// TimerAt ends op, as Timer does, when Now returns at.
func (c upper) TimerAt(op *Op, at time.Duration) error {
	t, err := c.startOp(op, kindTimer, Addr{})
	if err != nil {
		return err
	}
	c.ep.startTimer(t, at)
	return nil
}

// SendExpected sends buf, at most Limits().MaxExpected bytes, to the receive that the peer has
// posted for tag.
func (c *Context) SendExpected(op *Op, to Addr, tag Tag, buf []byte) error {
	return c.SendExpectedLong(op, to, tag, buf, 0)
}

// SendExpectedLong sends buf as SendExpected does, to a receive that takes most bytes: see
// RecvExpectedLong. buf may be as long as that, at most MaxRoom.
func (c *Context) SendExpectedLong(op *Op, to Addr, tag Tag, buf []byte, most int) error {
	if limit := max(c.limits.MaxExpected, min(most, MaxRoom)); len(buf) > limit {
		return c.refusedError(kindSendExpected, to, tooLong(len(buf), limit))
	}
	t, err := c.startOp(op, kindSendExpected, to)
	if err != nil {
		return err
	}
	c.ep.startSendExpected(t, to, tag, buf, nil, false, most)
	return nil
}

// RecvExpected receives the message with tag from one peer into buf, which belongs to the operation
// until its callback runs. Result.N is the length of the message. Post the receive before the peer
// can send: a message without a receive is dropped, and counted in Stats.LateDropped.
//
// A message longer than buf is lost: op ends with ErrOverflow, Fate Ran and Result.N, and buf is
// unchanged. Each peer and tag may have one receive at a time, including that of a Call; a second
// one ends with ErrBusy and does not affect the first. A tag may be used again as soon as the
// callback of its receive has begun. Messages with different tags are received in the order in
// which they arrive.
func (c *Context) RecvExpected(op *Op, from Addr, tag Tag, buf []byte) error {
	return c.RecvExpectedLong(op, from, tag, buf, 0)
}

// RecvExpectedLong receives as RecvExpected does, also a message that is longer than buf, up to
// most bytes (at most MaxRoom). op ends with Result.Envelope then, which the callback owns, and buf
// is unchanged. No memory is allocated before the message arrives. The sender has to know most.
func (c *Context) RecvExpectedLong(op *Op, from Addr, tag Tag, buf []byte, most int) error {
	t, err := c.startOp(op, kindRecvExpected, from)
	if err != nil {
		return err
	}
	c.ep.startRecvExpected(t, from, tag, buf, min(most, MaxRoom))
	return nil
}

// Put writes the n bytes of local at loff into the peer's memory of key at roff; offsets are in
// bytes. It does not block. The error matches ErrInvalid for a range outside of local or key,
// ErrPermission if the access of key does not allow it, and ErrRevoked if local was deregistered.
// op ends with ErrRevoked if the peer's memory was.
func (c *Context) Put(op *Op, local *Mem, loff int64, to Addr, key Key, roff, n int64) error {
	t, err := c.startMove(op, kindPut, local, loff, to, key, roff, n)
	if err != nil {
		return err
	}
	c.ep.startPut(t, local, loff, to, key, roff, n)
	return nil
}

// Get reads n bytes of the peer's memory of key at roff into local at loff. Offsets and errors are
// those of Put.
func (c *Context) Get(op *Op, local *Mem, loff int64, to Addr, key Key, roff, n int64) error {
	t, err := c.startMove(op, kindGet, local, loff, to, key, roff, n)
	if err != nil {
		return err
	}
	c.ep.startGet(t, local, loff, to, key, roff, n)
	return nil
}

// Lease registers buf for reading by one peer, and returns the memory whose key the peer needs. op
// ends with nil when the peer gives the memory back, with ErrNoEntry if the peer has dropped the
// expected message with tag, with ErrPeerLost if the peer is lost, and with ErrCanceled after a
// cancel. The peer cannot read the memory any more then.
func (c upper) Lease(op *Op, to Addr, tag Tag, buf []byte) (*Mem, error) {
	t, err := c.startOp(op, kindLease, to)
	if err != nil {
		return nil, err
	}
	m, err := c.class.register(ReadOnly, 0, [][]byte{buf}, false)
	if err != nil {
		op.undoStart()
		return nil, err
	}
	c.ep.startLease(t, to, tag, m)
	return m, nil
}

// GiveBack notifies the owner of a lease that its memory is not needed any more. It does not block.
func (c upper) GiveBack(to Addr, key Key) {
	if !c.Closing() {
		c.ep.giveBack(to, key)
	}
}

// startOp starts an operation of c. It fails if c is closed, or if the kind needs a peer and peer
// is zero.
func (c *Context) startOp(op *Op, kind opKind, peer Addr) (ticket, error) {
	if kind >= kindsOfPeer && peer.IsZero() {
		return ticket{}, c.refusedError(kind, peer, WithText(ErrInvalid, "empty peer address"))
	}
	t, err := op.beginLife(kind, peer)
	if err == nil && c.Closing() {
		op.undoStart()
		err = c.refusedError(kind, peer, ErrClosed)
	}
	return t, err
}

// startMove checks a Put or Get, starts it, and acquires local.
func (c *Context) startMove(op *Op, kind opKind, local *Mem, loff int64, to Addr, key Key, roff, n int64) (ticket, error) {
	need := ReadOnly
	if kind == kindPut {
		need = WriteOnly
	}
	switch {
	case local == nil:
		return ticket{}, c.refusedError(kind, to, WithText(ErrInvalid, "local memory is nil"))
	case !local.contains(loff, n):
		return ticket{}, c.refusedError(kind, to, outOfRange("local memory", loff, n, local.Len()))
	case !InRange(roff, n, key.Len):
		return ticket{}, c.refusedError(kind, to, outOfRange("remote memory", roff, n, key.Len))
	case !key.Access.Can(need):
		return ticket{}, c.refusedError(kind, to, WithText(ErrPermission,
			fmt.Sprintf("remote memory allows %v, %s needs %v", key.Access, kindText[kind], need)))
	}
	t, err := c.startOp(op, kind, to)
	if err != nil {
		return ticket{}, err
	}
	if !local.acquireLocal() {
		op.undoStart()
		return ticket{}, c.refusedError(kind, to, WithText(ErrRevoked, "local memory has been deregistered"))
	}
	return t, nil
}

// refusedError returns the error of an operation that was not started.
func (c *Context) refusedError(kind opKind, peer Addr, err error) error {
	return &OpError{Op: kindText[kind], Addr: peer, Fate: NotRun, Err: err}
}

func tooLong(n, limit int) error {
	return WithText(ErrMsgSize, fmt.Sprintf("message of %d bytes, limit %d", n, limit))
}

func outOfRange(what string, off, n, size int64) error {
	return WithText(ErrInvalid, fmt.Sprintf("%d bytes at offset %d lie outside %s of %d bytes", n, off, what, size))
}
