package impi

import (
	"fmt"
	"slices"
)

// Input takes bytes from the peer: any number, not necessarily whole packets. It copies what it needs. It fails when the peer
// has broken the protocol, with ErrProtocol, which ends the channel as Fail does, and when the channel had ended before.
func (a *Agent) Input(b []byte) error {
	for len(b) > 0 && a.err == nil {
		if n := min(len(b), PacketSize-len(a.head)); n > 0 {
			a.head = append(a.head, b[:n]...)
			b = b[n:]
			if len(a.head) < PacketSize {
				break
			}
			if err := a.begin(); err != nil {
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
		a.head, a.data = a.head[:0], nil
		if err := a.packet(&a.in, data); err != nil {
			a.Fail(err)
		}
	}
	return a.err
}

// begin judges the header that has arrived, and makes room for the data only then.
func (a *Agent) begin() (err error) {
	if a.in, err = ParsePacket(a.head); err != nil {
		return err
	}
	p := &a.in
	switch {
	case p.Type == PacketFini:
	case !a.remote[p.Src]:
		return violation(p, "from a process that is not the peer's")
	case !a.local[p.Dest]:
		return violation(p, "for a process that is not here")
	}
	if !p.Type.hasData() {
		return nil
	}
	long := p.MsgLen > uint64(a.config.MaxPacket)
	switch whole := uint64(p.Len) == p.MsgLen; {
	case uint64(p.Len) > uint64(a.config.MaxPacket) || uint64(p.Len) > p.MsgLen:
		return violation(p, "of %d bytes, for a message of %d", p.Len, p.MsgLen)
	case !long && !whole:
		return violation(p, "with a part of a message of %d bytes, which is short", p.MsgLen)
	}
	a.data = make([]byte, 0, p.Len)
	return nil
}

func violation(p *Packet, format string, args ...any) error {
	return fmt.Errorf("%w: %v %s", ErrProtocol, p.Type, fmt.Sprintf(format, args...))
}

// packet acts on a packet that has arrived as a whole.
func (a *Agent) packet(p *Packet, data []byte) error {
	if a.peerFinished && (p.Type.hasData() || p.Type == PacketCancel || p.Type == PacketFini) {
		return violation(p, "behind a FINI")
	}
	if p.Type == PacketFini {
		a.peerFinished = true
		return nil
	}
	pr := a.pair(p.Dest, p.Src)
	switch p.Type {
	case PacketProtoAck:
		if pr.unacked < a.config.Ackmark {
			return violation(p, "for %d packets, more than have been sent", a.config.Ackmark)
		}
		pr.unacked -= a.config.Ackmark
		a.wake(pr)
		return nil
	case PacketData, PacketDataSync:
		if p.Type == PacketData && uint64(p.Len) < p.MsgLen {
			return a.restArrived(pr, p, data)
		}
		return a.firstArrived(pr, p, data)
	}
	a.countReceived(pr) // nobody has to receive the others
	s := a.sends[sendKey{p.Dest, p.SrcRequest}]
	if s != nil && s.To != p.Src {
		s = nil
	}
	switch p.Type {
	case PacketSyncAck:
		return a.syncAck(pr, s, p)
	case PacketCancel:
		return a.cancelArrived(pr, p)
	default:
		return a.replyArrived(pr, s, p)
	}
}

// countReceived counts one packet of pr that needs no room here any more.
func (a *Agent) countReceived(pr *pair) {
	if pr.received++; pr.received == a.config.Ackmark {
		pr.received = 0
		pr.acks++
		a.wake(pr)
	}
}

// firstArrived: the message is received if a receive waits for it, and held otherwise.
func (a *Agent) firstArrived(pr *pair, p *Packet, data []byte) error {
	e := &envelope{packet: *p, data: data, pair: pr}
	for i, r := range a.posted {
		if r.matches(p) {
			delete(pr.newest, p.SrcRequest) // what came before with this number cannot be canceled any more
			a.posted = slices.Delete(a.posted, i, i+1)
			return a.receive(r, e)
		}
	}
	if pr.held >= a.config.Hiwater {
		return violation(p, "beyond the %d that may be held", a.config.Hiwater)
	}
	a.hold(e)
	return nil
}

// receive gives the message of e to r. This is the moment at which it is too late to cancel, though parts of it may be to come.
func (a *Agent) receive(r *Receive, e *envelope) error {
	a.countReceived(e.pair)
	p := &e.packet
	r.Packet, r.N = *p, copy(r.Buf, e.data)
	r.offset = uint64(len(e.data))
	ack := Packet{Type: PacketSyncAck, SrcRequest: p.SrcRequest}
	switch {
	case r.offset == p.MsgLen:
		a.endReceive(r, r.truncated())
	case a.err != nil: // the rest will not come
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
	return a.answer(e.pair, ack)
}

// restArrived takes a part of a long message that is not the first.
func (a *Agent) restArrived(pr *pair, p *Packet, data []byte) error {
	r := a.matched[p.DestRequest]
	switch {
	case r == nil || r.Packet.Src != p.Src || r.Packet.Dest != p.Dest || r.Packet.MsgLen != p.MsgLen:
		return violation(p, "of no message that is arriving")
	case len(data) == 0 || uint64(len(data)) > p.MsgLen-r.offset:
		return violation(p, "of %d bytes, where %d are missing", len(data), p.MsgLen-r.offset)
	}
	a.countReceived(pr)
	if r.offset < uint64(len(r.Buf)) {
		r.N += copy(r.Buf[r.offset:], data)
	}
	if r.offset += uint64(len(data)); r.offset == p.MsgLen {
		delete(a.matched, p.DestRequest)
		a.endReceive(r, r.truncated())
	}
	return nil
}

func (r *Receive) truncated() error {
	if r.Packet.MsgLen > uint64(len(r.Buf)) {
		return ErrTruncated
	}
	return nil
}

// syncAck: the peer has received s.
func (a *Agent) syncAck(pr *pair, s *Send, p *Packet) error {
	if s == nil || s.state != sendExposed && s.state != sendRefused {
		return violation(p, "for request %d, which expects none", p.SrcRequest)
	}
	if s.cancel == cancelWanted {
		pr.cancels = remove(pr.cancels, s)
		a.answerCancel(s, TooLate)
	}
	if s.off == len(s.Data) {
		a.endSend(s, nil)
		return nil
	}
	s.state, s.destReq = sendMatched, p.DestRequest
	pr.rest = append(pr.rest, s)
	a.wake(pr)
	return nil
}

// cancelArrived answers a cancel request. It came behind its message, so the message is held or has been received. Of those
// with its number only the newest is meant: when that has been received no older one may be destroyed in its place.
func (a *Agent) cancelArrived(pr *pair, p *Packet) error {
	reply := Packet{Type: PacketCancelNo, SrcRequest: p.SrcRequest}
	if e := pr.newest[p.SrcRequest]; e != nil {
		a.unhold(e)
		a.countReceived(pr)
		reply.Type = PacketCancelYes
	}
	return a.answer(pr, reply)
}

// answer sends a SYNCACK or a cancel reply. A peer that keeps to its window and reads causes at most Hiwater of each to wait.
func (a *Agent) answer(pr *pair, reply Packet) error {
	if a.err != nil {
		return nil
	}
	if len(pr.answers)/2 >= a.config.Hiwater {
		return violation(&reply, "has to wait behind %d others that the peer did not read", len(pr.answers))
	}
	pr.answers = append(pr.answers, reply)
	a.wake(pr)
	return nil
}

// replyArrived: the peer has answered a cancel request.
func (a *Agent) replyArrived(pr *pair, s *Send, p *Packet) error {
	yes := p.Type == PacketCancelYes
	switch {
	case s != nil && s.cancel == cancelAsked:
	case s != nil && yes:
		return violation(p, "for request %d, which was not canceled", p.SrcRequest)
	default:
		a.stray++
		return nil
	}
	pr.asked--
	if len(pr.cancels) > 0 {
		a.wake(pr)
	}
	switch {
	case !yes:
		if s.state == sendExposed {
			s.state = sendRefused
		}
		a.answerCancel(s, TooLate)
	case s.state != sendExposed:
		return violation(p, "for request %d, which was received", p.SrcRequest)
	default:
		a.answerCancel(s, Canceled)
		a.endSend(s, ErrCanceled)
	}
	return nil
}
