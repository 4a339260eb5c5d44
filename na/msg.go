package na

import (
	"errors"
	"fmt"
	"time"
)

// A Tag distinguishes the expected messages from one peer. An unexpected message also carries a
// Tag, which is passed to its receiver.
type Tag uint64

// Lookup resolves the text form of an address, such as "tcp://node7:9000". op completes with
// Result.Addr set, and may be canceled. Lookup does not connect. The first operation that uses the
// address does.
func (c *Context) Lookup(op *Op, text string) error {
	t, err := c.startOp(op, kindLookup, Addr{})
	if err != nil {
		return err
	}
	c.ep.startLookup(t, text)
	return nil
}

// SendUnexpected sends buf to the peer's RecvUnexpected. buf may have at most
// Limits().MaxUnexpected bytes and belongs to op until its callback runs. A longer message, of up
// to MaxRoom bytes, requires a prior ClaimRoom, without which op fails with ErrMsgSize.
func (c *Context) SendUnexpected(op *Op, to Addr, tag Tag, buf []byte) error {
	return c.SendUnexpectedBy(op, to, tag, buf, Deadline{})
}

// SendUnexpectedBy is like SendUnexpected but takes a deadline. If the message waits for an
// envelope or a connection until after the deadline, it is not sent and op fails with ErrTimeout
// and fate NotRun. This does not limit how long op takes. To complete op at the deadline in any
// case, start a Timer that cancels op.
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

// RecvUnexpected receives the oldest unexpected message. op completes with Result.Envelope, which
// is owned by the callback.
func (c *Context) RecvUnexpected(op *Op) error {
	c.class.Serve()
	t, err := c.startOp(op, kindRecvUnexpected, Addr{})
	if err != nil {
		return err
	}
	c.ep.startRecvUnexpected(t)
	return nil
}

// Withdraw requests that the peer destroy an unexpected message that was sent by SendUnexpected.
// to and id are the Addr and ID of its Result. Withdraw does not use an envelope. op may be
// canceled, but the peer may destroy the message nevertheless. op completes:
//
//   - with nil if the message was destroyed before it was accepted, so that it had and will have
//     no effect;
//   - with ErrTooLate if the message had already been accepted;
//   - with ErrPeerLost if the session was closed first, in which case the fate of the message is
//     unknown;
//   - with ErrUnsupported if the peer does not support withdrawals.
func (c *Context) Withdraw(op *Op, to Addr, id uint64) error {
	t, err := c.startOp(op, kindWithdraw, to)
	if err != nil {
		return err
	}
	c.ep.startWithdraw(t, to, id)
	return nil
}

// Abandon notifies the peer that the response to an unexpected message is no longer needed. to and
// id are the Addr and ID of the Result of its SendUnexpected. If the message has not been accepted,
// it is destroyed. Otherwise the peer's OnAbandon function is called. Abandon is best effort and
// has no completion.
func (c upper) Abandon(to Addr, id uint64) {
	if !c.Closing() {
		c.ep.abandonRequest(to, id)
	}
}

var errNoReason = errors.New("session closed by the program")

// Connected reports whether the session to which peer is bound is up. If peer is not bound,
// Connected reports whether the session with the peer of that name is up.
func (c *Context) Connected(peer Addr) bool { return c.ep.isConnected(peer) }

// Disconnect closes a session, with err as the reason, or aborts an attempt to establish it. The
// session is the one to which peer is bound or, if peer is not bound, the session with the peer of
// that name. Operations with the peer fail with ErrPeerLost. A later operation connects again.
func (c *Context) Disconnect(peer Addr, err error) {
	if err == nil {
		err = errNoReason
	}
	if !c.Closing() {
		c.ep.disconnectSession(peer, err)
	}
}

// Probe checks whether the program that owns the context at to calls Progress and Trigger, and
// whether it is ready. It connects if there is no session. It does not block. op completes:
//
//   - with nil if the peer calls Trigger and is ready;
//   - with ErrNotReady if it calls Trigger and is not ready (see Class.SetReady);
//   - with ErrDraining if it calls Trigger and is shutting down;
//   - with ErrTimeout if timeout is positive and expires without a response, which means that
//     Trigger is not called or does not return;
//   - with ErrUnreachable or ErrPeerLost if there is no session;
//   - with ErrAgain if 1024 probes of the peer are in flight.
//
// A probe does not need an envelope, and no limit on requests applies to it. Result.Fate is
// NotRun.
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

// Timer completes op with nil after d, in the next call to Progress and Trigger. op may be
// canceled.
func (c *Context) Timer(op *Op, d time.Duration) error {
	return c.Upper().TimerAt(op, c.Now()+min(max(d, 0), maxTime))
}

// TimerAt is like Timer but completes op when Now reaches at.
func (c upper) TimerAt(op *Op, at time.Duration) error {
	t, err := c.startOp(op, kindTimer, Addr{})
	if err != nil {
		return err
	}
	c.ep.startTimer(t, at)
	return nil
}

// SendExpected sends buf to the receive that the peer has posted for tag. buf may have at most
// Limits().MaxExpected bytes and belongs to op until its callback runs.
func (c *Context) SendExpected(op *Op, to Addr, tag Tag, buf []byte) error {
	return c.SendExpectedLong(op, to, tag, buf, 0)
}

// SendExpectedLong is like SendExpected but sends to a receive that accepts most bytes, as posted
// by RecvExpectedLong. buf may have up to most bytes, but no more than MaxRoom.
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

// RecvExpected receives the message with the given tag from one peer into buf, which belongs to the
// operation until its callback runs. Result.N is the length of the message. The receive must be
// posted before the peer can send. A message without a receive is dropped and counted in
// Stats.LateDropped.
//
// A message longer than buf is lost: op fails with ErrOverflow, Fate Ran and Result.N set, and buf
// is unchanged. There may be only one receive at a time for each peer and tag, including those of
// calls. A second one fails with ErrBusy and does not affect the first. A tag may be reused as soon
// as the callback of its receive has begun. Messages with different tags are received in the order
// in which they arrive.
func (c *Context) RecvExpected(op *Op, from Addr, tag Tag, buf []byte) error {
	return c.RecvExpectedLong(op, from, tag, buf, 0)
}

// RecvExpectedLong is like RecvExpected but also receives a message longer than buf, of up to most
// bytes (limited to MaxRoom). In that case op completes with Result.Envelope, which is owned by the
// callback, and buf is unchanged. No memory is allocated before the message arrives. The sender
// must know the value of most.
func (c *Context) RecvExpectedLong(op *Op, from Addr, tag Tag, buf []byte, most int) error {
	t, err := c.startOp(op, kindRecvExpected, from)
	if err != nil {
		return err
	}
	c.ep.startRecvExpected(t, from, tag, buf, min(most, MaxRoom))
	return nil
}

// Put writes the n bytes of local at offset loff to the peer's memory identified by key, at offset
// roff. Offsets are in bytes. Put does not block. It returns an error that matches ErrInvalid if a
// range lies outside local or key, ErrPermission if key's access mode does not allow it, and
// ErrRevoked if local has been deregistered. If the peer's memory has been deregistered, op fails
// with ErrRevoked.
func (c *Context) Put(op *Op, local *Mem, loff int64, to Addr, key Key, roff, n int64) error {
	t, err := c.startMove(op, kindPut, local, loff, to, key, roff, n)
	if err != nil {
		return err
	}
	c.ep.startPut(t, local, loff, to, key, roff, n)
	return nil
}

// Get reads n bytes at offset roff of the peer's memory identified by key into local at offset
// loff. Offsets and errors are as for Put.
func (c *Context) Get(op *Op, local *Mem, loff int64, to Addr, key Key, roff, n int64) error {
	t, err := c.startMove(op, kindGet, local, loff, to, key, roff, n)
	if err != nil {
		return err
	}
	c.ep.startGet(t, local, loff, to, key, roff, n)
	return nil
}

// Lease registers buf for reading by one peer. The peer reads it with the key of the returned
// memory, which the caller sends in the expected message with the given tag. op completes with nil
// when the peer has returned the lease, with ErrNoEntry if it has dropped that message, with
// ErrPeerLost, or with ErrCanceled. Once op has completed, the peer cannot read the memory.
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

// GiveBack notifies the owner of a lease that its memory is no longer needed. It does not block.
func (c upper) GiveBack(to Addr, key Key) {
	if !c.Closing() {
		c.ep.giveBack(to, key)
	}
}

// startOp starts an operation of c. It fails if c is closed, or if the kind requires a peer and
// peer is the zero Addr.
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

// startMove validates the arguments of a Put or Get, starts the operation and acquires local.
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

// refusedError returns the error for an operation that was not started.
func (c *Context) refusedError(kind opKind, peer Addr, err error) error {
	return &OpError{Op: kindText[kind], Addr: peer, Fate: NotRun, Err: err}
}

func tooLong(n, limit int) error {
	return WithText(ErrMsgSize, fmt.Sprintf("message of %d bytes, limit %d", n, limit))
}

func outOfRange(what string, off, n, size int64) error {
	return WithText(ErrInvalid, fmt.Sprintf("%d bytes at offset %d lie outside %s of %d bytes", n, off, what, size))
}
