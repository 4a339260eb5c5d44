package na

import (
	"errors"
	"fmt"
	"time"
)

// A Tag tells expected messages of one peer apart, and travels with unexpected ones.
type Tag uint64

// Lookup resolves the text of an address, for example "tcp://node7:9000"; op ends with Result.Addr. It does not
// connect: a connection is made by the first operation. It may be canceled.
func (c *Context) Lookup(op *Op, text string) error {
	t, err := c.startOp(op, kindLookup, Addr{})
	if err != nil {
		return err
	}
	c.ep.startLookup(t, text)
	return nil
}

// SendUnexpected sends buf, at most Limits().MaxUnexpected bytes, to the peer's RecvUnexpected. buf belongs to op until
// its callback runs. A longer one, up to MaxRoom bytes, needs a ClaimRoom before: without, op ends with ErrMsgSize.
func (c *Context) SendUnexpected(op *Op, to Addr, tag Tag, buf []byte) error {
	return c.SendUnexpectedBy(op, to, tag, buf, Deadline{})
}

// SendUnexpectedBy is SendUnexpected for a message that is worth nothing after a deadline. One that has to wait, for an
// envelope or a connection, and whose turn comes later than that is not sent: op ends with ErrTimeout and NotRun. To end
// op at the deadline whatever happens, start a Timer and cancel op.
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

// RecvUnexpected receives the oldest unexpected message; op ends with Result.Envelope, which the callback owns.
func (c *Context) RecvUnexpected(op *Op) error {
	c.class.Serve()
	t, err := c.startOp(op, kindRecvUnexpected, Addr{})
	if err != nil {
		return err
	}
	c.ep.startRecvUnexpected(t)
	return nil
}

// Withdraw asks the peer to destroy the unexpected message that a SendUnexpected has sent; to and id are Addr and ID of
// its Result. op ends with nil when the message was destroyed before anybody accepted it, so that nothing has become or
// will become of it; with ErrTooLate when it had been accepted; with ErrPeerLost when the session ended first and nobody
// knows; with ErrUnsupported when the peer cannot do it. The question uses no envelope. op may be canceled; the peer
// may have destroyed the message all the same.
func (c *Context) Withdraw(op *Op, to Addr, id uint64) error {
	t, err := c.startOp(op, kindWithdraw, to)
	if err != nil {
		return err
	}
	c.ep.startWithdraw(t, to, id)
	return nil
}

// Abandon tells the peer that the answer to an unexpected message is not wanted any more; to and id are Addr and ID of the
// Result of its SendUnexpected. If nobody there has accepted it, it is destroyed; else the peer's OnAbandon is called with it.
// Best effort, no completion.
func (c upper) Abandon(to Addr, id uint64) {
	if !c.Closing() {
		c.ep.abandonRequest(to, id)
	}
}

var errNoReason = errors.New("the program has ended the session, and gave no reason")

// Connected reports whether the session that peer is bound to, or of that name, is up.
func (c *Context) Connected(peer Addr) bool { return c.ep.isConnected(peer) }

// Disconnect ends the session that peer is bound to, or of that name, or the attempt to make one, because of err: operations with the
// peer end with ErrPeerLost. A later operation connects anew.
func (c *Context) Disconnect(peer Addr, err error) {
	if err == nil {
		err = errNoReason
	}
	if !c.Closing() {
		c.ep.disconnectSession(peer, err)
	}
}

// Probe asks the context at to whether somebody drives it, and whether it is ready. It connects if there is no session, and does not block. op
// ends
//
//   - with nil when the peer's program drives the context and is ready;
//   - with ErrNotReady when it drives and is not ready (Class.SetReady);
//   - with ErrDraining when it drives and shuts down;
//   - with ErrTimeout when timeout, if that is positive, has passed without an answer: a context is not driven, or its Trigger does not return;
//   - with ErrUnreachable or ErrPeerLost when there is no session;
//   - with ErrAgain when 1024 probes of the peer are under way.
//
// A probe needs no envelope, and no limit on requests holds it up. Result.Fate is NotRun.
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

// Timer ends op with nil when d has passed; somebody must drive the context then. It may be canceled.
func (c *Context) Timer(op *Op, d time.Duration) error {
	return c.Upper().TimerAt(op, c.Now()+min(max(d, 0), maxTime))
}

// TimerAt is Timer that ends op when Now reads at.
func (c upper) TimerAt(op *Op, at time.Duration) error {
	t, err := c.startOp(op, kindTimer, Addr{})
	if err != nil {
		return err
	}
	c.ep.startTimer(t, at)
	return nil
}

// SendExpected sends buf, at most Limits().MaxExpected bytes, to the receive that the peer posted for tag.
func (c *Context) SendExpected(op *Op, to Addr, tag Tag, buf []byte) error {
	return c.SendExpectedLong(op, to, tag, buf, 0)
}

// SendExpectedLong is SendExpected for a receive that takes most bytes, as the receiver has said: see RecvExpectedLong. buf
// may have so many, MaxRoom at most.
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

// RecvExpected receives the message with tag from one peer into buf, which is the operation's until its callback runs; Result.N is
// the length of the message. Post it before the peer can send: a message that finds no receive is dropped, and counted in Stats.LateDropped.
//
// A message longer than buf is lost: op ends with ErrOverflow, Fate Ran and Result.N, and buf is as it was. Of one peer and tag there is one
// receive at a time, that of a Call included: a second one ends with ErrBusy and changes nothing for the first. A tag may be used again as soon as
// the callback of its receive has begun. Messages of different tags are received in whatever order they come.
func (c *Context) RecvExpected(op *Op, from Addr, tag Tag, buf []byte) error {
	return c.RecvExpectedLong(op, from, tag, buf, 0)
}

// RecvExpectedLong is RecvExpected for a message that may be longer than buf, up to most bytes, MaxRoom at most: op then ends
// with Result.Envelope, which the callback owns, and buf is as it was. No memory is taken before the message comes. The
// sender has to be told of most.
func (c *Context) RecvExpectedLong(op *Op, from Addr, tag Tag, buf []byte, most int) error {
	t, err := c.startOp(op, kindRecvExpected, from)
	if err != nil {
		return err
	}
	c.ep.startRecvExpected(t, from, tag, buf, min(most, MaxRoom))
	return nil
}

// Put writes the n bytes of local at loff into the peer's memory of key at roff; offsets are in bytes. It does not block. The error
// matches ErrInvalid for a range outside of local or key, ErrPermission if the access of key does not allow it, and ErrRevoked when
// local has been deregistered; op ends with ErrRevoked when the peer's memory has.
func (c *Context) Put(op *Op, local *Mem, loff int64, to Addr, key Key, roff, n int64) error {
	t, err := c.startMove(op, kindPut, local, loff, to, key, roff, n)
	if err != nil {
		return err
	}
	c.ep.startPut(t, local, loff, to, key, roff, n)
	return nil
}

// Get reads n bytes of the peer's memory of key at roff into local at loff. Offsets and errors are as with Put.
func (c *Context) Get(op *Op, local *Mem, loff int64, to Addr, key Key, roff, n int64) error {
	t, err := c.startMove(op, kindGet, local, loff, to, key, roff, n)
	if err != nil {
		return err
	}
	c.ep.startGet(t, local, loff, to, key, roff, n)
	return nil
}

// Lease registers buf for reading by one peer and returns the memory whose key the peer needs. op ends with nil when
// the peer gives the memory back, with ErrNoEntry when the peer dropped the expected message with tag, with ErrPeerLost
// when the peer is gone, with ErrCanceled after a cancel; the memory is out of reach then.
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

// GiveBack tells the owner of a lease that its memory is not needed any more. It waits for nothing.
func (c upper) GiveBack(to Addr, key Key) {
	if !c.Closing() {
		c.ep.giveBack(to, key)
	}
}

// startOp starts an operation of c, which is not closed; with a peer unless it is of a kind that has none.
func (c *Context) startOp(op *Op, kind opKind, peer Addr) (ticket, error) {
	if kind >= kindsOfPeer && peer.IsZero() {
		return ticket{}, c.refusedError(kind, peer, WithText(ErrInvalid, "no address given"))
	}
	t, err := op.beginLife(kind, peer)
	if err == nil && c.Closing() {
		op.undoStart()
		err = c.refusedError(kind, peer, ErrClosed)
	}
	return t, err
}

// startMove checks a Put or Get and starts it with local acquired.
func (c *Context) startMove(op *Op, kind opKind, local *Mem, loff int64, to Addr, key Key, roff, n int64) (ticket, error) {
	need := ReadOnly
	if kind == kindPut {
		need = WriteOnly
	}
	switch {
	case local == nil:
		return ticket{}, c.refusedError(kind, to, WithText(ErrInvalid, "no local memory given"))
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

// refusedError is the error of an operation that was not started.
func (c *Context) refusedError(kind opKind, peer Addr, err error) error {
	return &OpError{Op: kindText[kind], Addr: peer, Fate: NotRun, Err: err}
}

func tooLong(n, limit int) error {
	return WithText(ErrMsgSize, fmt.Sprintf("message of %d bytes, the limit is %d", n, limit))
}

func outOfRange(what string, off, n, size int64) error {
	return WithText(ErrInvalid, fmt.Sprintf("%d bytes at offset %d lie outside %s of %d bytes", n, off, what, size))
}
