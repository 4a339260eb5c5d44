package impi

import (
	"fmt"
	"slices"
)

// Input handles bytes received from the peer, which need not be whole packets. It does not retain b. If the peer has
// violated the protocol, Input closes the channel as Fail does and returns an error that matches ErrProtocol. If the
// channel was already closed, it returns the channel's error.
func (a *Agent) Input(b []byte) error {
	for len(b) > 0 && a.err == nil {
		if n := min(len(b), PacketSize-len(a.headerBuf)); n > 0 {
			a.headerBuf = append(a.headerBuf, b[:n]...)
			b = b[n:]
			if len(a.headerBuf) < PacketSize {
				break
			}
			if err := a.parseHeader(); err != nil {
				a.Fail(err)
				break
			}
		}
		n := min(len(b), cap(a.data)-len(a.data))
		a.data = append(a.data, b[:n]...)
		b = b[n:]
		if len(a.data) < cap(a.data) {
			break
		}
		data := a.data
		a.headerBuf, a.data = a.headerBuf[:0], nil
		if err := a.handlePacket(&a.header, data); err != nil {
			a.Fail(err)
		}
	}
	return a.err
}

// parseHeader parses and validates the header in headerBuf and then allocates memory for the data.
func (a *Agent) parseHeader() (err error) {
	if a.header, err = ParsePacket(a.headerBuf); err != nil {
		return err
	}
	p := &a.header
	switch {
	case p.Type == PacketFini:
	case !a.remote[p.Src]:
		return violationError(p, "from unknown process")
	case !a.local[p.Dest]:
		return violationError(p, "for non-local process")
	}
	if !p.Type.hasData() {
		return nil
	}
	long := p.MsgLen > uint64(a.config.MaxPacket)
	switch whole := uint64(p.Len) == p.MsgLen; {
	case uint64(p.Len) > uint64(a.config.MaxPacket) || uint64(p.Len) > p.MsgLen:
		return violationError(p, "of %d bytes, for a message of %d", p.Len, p.MsgLen)
	case !long && !whole:
		return violationError(p, "with a fragment of a message of %d bytes", p.MsgLen)
	}
	a.data = make([]byte, 0, p.Len)
	return nil
}

// violationError returns an error about p that matches ErrProtocol.
func violationError(p *Packet, format string, args ...any) error {
	return fmt.Errorf("%w: %v %s", ErrProtocol, p.Type, fmt.Sprintf(format, args...))
}

// handlePacket handles a complete packet.
func (a *Agent) handlePacket(p *Packet, data []byte) error {
	if a.peerFinished && (p.Type.hasData() || p.Type == PacketCancel || p.Type == PacketFini) {
		return violationError(p, "after a FINI")
	}
	if p.Type == PacketFini {
		a.peerFinished = true
		return nil
	}
	pr := a.pairOf(p.Dest, p.Src)
	switch p.Type {
	case PacketProtoAck:
		if pr.unacked < a.config.Ackmark {
			return violationError(p, "for %d packets, more than were sent", a.config.Ackmark)
		}
		pr.unacked -= a.config.Ackmark
		a.markReady(pr)
		return nil
	case PacketData, PacketDataSync:
		if p.Type == PacketData && uint64(p.Len) < p.MsgLen {
			return a.handleRest(pr, p, data)
		}
		return a.handleFirst(pr, p, data)
	}
	a.countReceived(pr) // only messages wait for a receive
	s := a.sends[sendKey{p.Dest, p.SrcRequest}]
	if s != nil && s.To != p.Src {
		s = nil
	}
	switch p.Type {
	case PacketSyncAck:
		return a.handleSyncAck(pr, s, p)
	case PacketCancel:
		return a.handleCancel(pr, p)
	default:
		return a.handleCancelReply(pr, s, p)
	}
}

// countReceived counts a packet of pr as received when the packet is no longer held. It queues a PROTOACK after every
// Ackmark packets.
func (a *Agent) countReceived(pr *pair) {
	pr.received++
	if pr.received == a.config.Ackmark {
		pr.received = 0
		pr.acks++
		a.markReady(pr)
	}
}

// handleFirst handles the first packet of a message. If a posted receive matches the message, the message is
// received. Otherwise it is held.
func (a *Agent) handleFirst(pr *pair, p *Packet, data []byte) error {
	e := &envelope{packet: *p, data: data, pair: pr}
	for i, r := range a.posted {
		if r.matches(p) {
			delete(pr.newest, p.SrcRequest) // an older message with this number can no longer be canceled
			a.posted = slices.Delete(a.posted, i, i+1)
			return a.startReceive(r, e)
		}
	}
	if pr.held >= a.config.Hiwater {
		return violationError(p, "beyond the limit of %d", a.config.Hiwater)
	}
	a.holdMessage(e)
	return nil
}

// startReceive receives the message of e with r. Afterward, it is too late to cancel the message, even if parts of
// it have not arrived.
func (a *Agent) startReceive(r *Receive, e *envelope) error {
	a.countReceived(e.pair)
	p := &e.packet
	r.Packet, r.N = *p, copy(r.Buf, e.data)
	r.offset = uint64(len(e.data))
	ack := Packet{Type: PacketSyncAck, SrcRequest: p.SrcRequest}
	switch {
	case r.offset == p.MsgLen:
		a.endReceive(r, r.truncatedError())
	case a.err != nil: // the rest cannot arrive
		a.endReceive(r, a.err)
	default:
		a.destReq++
		ack.DestRequest = a.destReq
		r.state = receiveMatched
		a.matched[a.destReq] = r
	}
	if p.Type != PacketDataSync {
		return nil
	}
	return a.queueReply(e.pair, ack)
}

// handleRest handles a packet of a long message other than the first.
func (a *Agent) handleRest(pr *pair, p *Packet, data []byte) error {
	r := a.matched[p.DestRequest]
	switch {
	case r == nil || r.Packet.Src != p.Src || r.Packet.Dest != p.Dest || r.Packet.MsgLen != p.MsgLen:
		return violationError(p, "without a message in progress")
	case len(data) == 0 || uint64(len(data)) > p.MsgLen-r.offset:
		return violationError(p, "of %d bytes, but %d are missing", len(data), p.MsgLen-r.offset)
	}
	a.countReceived(pr)
	if r.offset < uint64(len(r.Buf)) {
		r.N += copy(r.Buf[r.offset:], data)
	}
	r.offset += uint64(len(data))
	if r.offset == p.MsgLen {
		delete(a.matched, p.DestRequest)
		a.endReceive(r, r.truncatedError())
	}
	return nil
}

// truncatedError returns ErrTruncated if the message is longer than r.Buf, and nil otherwise.
func (r *Receive) truncatedError() error {
	if r.Packet.MsgLen > uint64(len(r.Buf)) {
		return ErrTruncated
	}
	return nil
}

// handleSyncAck handles a SYNCACK, which means that the peer has received s.
func (a *Agent) handleSyncAck(pr *pair, s *Send, p *Packet) error {
	if s == nil || s.state != sendExposed && s.state != sendRefused {
		return violationError(p, "for request %d, which expects no reply", p.SrcRequest)
	}
	if s.cancel == cancelWanted {
		pr.cancels = removeFrom(pr.cancels, s)
		a.answerCancel(s, TooLate)
	}
	if s.sent == len(s.Data) {
		a.endSend(s, nil)
		return nil
	}
	s.state, s.destReq = sendMatched, p.DestRequest
	pr.matchedSends = append(pr.matchedSends, s)
	a.markReady(pr)
	return nil
}

// handleCancel replies to a cancel request. The request arrives after its message, so the message is held or has been
// received. The request applies only to the newest message with its number. If that message has been received, an
// older one must not be destroyed in its place.
func (a *Agent) handleCancel(pr *pair, p *Packet) error {
	reply := Packet{Type: PacketCancelNo, SrcRequest: p.SrcRequest}
	if e := pr.newest[p.SrcRequest]; e != nil {
		a.removeHeld(e)
		a.countReceived(pr)
		reply.Type = PacketCancelYes
	}
	return a.queueReply(pr, reply)
}

// queueReply queues a SYNCACK or a cancel reply. As long as the peer respects its window and reads, at most Hiwater
// of each are queued.
func (a *Agent) queueReply(pr *pair, reply Packet) error {
	if a.err != nil {
		return nil
	}
	if len(pr.replies)/2 >= a.config.Hiwater {
		return violationError(&reply, "exceeds %d unread replies", len(pr.replies))
	}
	pr.replies = append(pr.replies, reply)
	a.markReady(pr)
	return nil
}

// handleCancelReply handles the reply to a cancel request for s.
func (a *Agent) handleCancelReply(pr *pair, s *Send, p *Packet) error {
	yes := p.Type == PacketCancelYes
	switch {
	case s != nil && s.cancel == cancelAsked:
	case s != nil && yes:
		return violationError(p, "for request %d, which was not canceled", p.SrcRequest)
	default:
		a.strayReplies++
		return nil
	}
	pr.cancelsAsked--
	if len(pr.cancels) > 0 {
		a.markReady(pr)
	}
	switch {
	case !yes:
		if s.state == sendExposed {
			s.state = sendRefused
		}
		a.answerCancel(s, TooLate)
	case s.state != sendExposed:
		return violationError(p, "for request %d, which was received", p.SrcRequest)
	default:
		a.answerCancel(s, Canceled)
		a.endSend(s, ErrCanceled)
	}
	return nil
}
