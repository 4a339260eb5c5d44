package arq

import (
	"encoding/binary"
	"time"
)

// A receiver tracks the acknowledgments of one received lane, and its packets that are out of
// order.
type receiver struct {
	owed  int                   // packets received since the last acknowledgment
	due   time.Duration         // when an acknowledgment is sent without data; 0: none is pending
	high  uint32                // the highest number received; valid if gap
	every uint8                 // Adaptive: the number of packets that one acknowledgment covers
	now   bool                  // an acknowledgment is to be sent at once
	gap   bool                  // packets are missing
	dup   bool                  // a packet has arrived twice
	bits  *bitmap               // packets received out of order; nil: none
	held  map[uint32]heldPacket // lane 0: the packets of bits, by number
	units int                   // lane 0: the numbers that the held packets use up
}

// ackDelay is how long Adaptive delays an acknowledgment to send it together with data.
const ackDelay = time.Millisecond

// noteTaken records that a packet was received, and decides when it is acknowledged.
func (a *Assoc) noteTaken(now time.Duration, i int, p *Packet) {
	r := &a.flight.recv[i]
	r.owed++
	r.now = r.now || p.flags&flagAckNow != 0
	switch a.m.cfg.Ack {
	case Eager:
		r.now = true
	case Adaptive:
		// every second packet of messages (RFC 5681 4.2), every eighth of bulk data
		r.every = max(r.every, uint8(2+6*i))
		if r.owed >= int(r.every) {
			r.now = true
		} else if r.due == 0 {
			r.due = now + ackDelay
		}
	}
}

// hasPacket reports whether the packet that is ahead numbers beyond the next expected one has
// arrived.
func (r *receiver) hasPacket(ahead uint32) bool {
	return r.bits != nil && ahead < maxAhead && r.bits.has(ahead)
}

// noteGap records that a packet was dropped because packets before it are missing.
func (a *Assoc) noteGap(r *receiver, p *Packet) {
	a.m.stats.OutOfOrder++
	if !r.gap || before(r.high, p.seq) {
		r.high = p.seq
	}
	r.now, r.gap = true, true
}

// advance records that a packet was received, and returns how many packets are there without a gap,
// starting at the next expected one. Only a lane with a gap has a bitmap.
func (a *Assoc) advance(r *receiver, ahead uint32) (n uint32) {
	if ahead == 0 && r.bits == nil {
		return 1
	}
	m := a.m
	if r.bits == nil {
		if n := len(m.bitmaps); n > 0 {
			r.bits, m.bitmaps = m.bitmaps[n-1], m.bitmaps[:n-1]
		} else {
			r.bits = &bitmap{}
		}
	}
	r.bits.set(ahead)
	r.now, r.gap = true, true
	if ahead > 0 {
		return 0
	}
	n = r.bits.ones() // the packet closes the first gap
	if r.bits.shift(n); r.bits.last() == 0 {
		m.bitmaps = append(m.bitmaps, r.bits)
		r.bits, r.gap = nil, false
	}
	return n
}

// fillHeader fills in the fields that all packets have, among them the acknowledgment of lane i.
func (a *Assoc) fillHeader(now time.Duration, i int, p *Packet) {
	l := &a.lane[i]
	p.form, p.id, p.token, p.ts = a.form, a.peerID, a.peerToken, clock(now)
	p.ack = l.rcv
	p.edge = a.grantLimit(i)
	// The peer's timestamp is echoed with the time that it was kept here, so that a delayed
	// acknowledgment does not look like a slow path.
	if f := a.flight; f.tsSet && now-f.tsAt < 8*time.Microsecond<<16 {
		p.flags |= flagEcho
		p.echo, p.delay = f.ts, uint16((now-f.tsAt)/(8*time.Microsecond))
	}
}

// grantLimit returns the first number of lane i that the peer may not use yet. A grant is never
// taken back when the share of the buffer shrinks, because the peer may have used it.
func (a *Assoc) grantLimit(i int) uint32 {
	l := &a.lane[i]
	if a.m.cfg.Profile == Modern && i == 0 {
		edge := a.promiseLimit()
		if before(l.granted, edge) {
			l.granted = edge
		}
		return edge
	}
	if edge := l.rcv + a.creditBeyond(i); before(l.granted, edge) {
		l.granted = edge
	}
	return l.granted
}

// noteAckSent records that an acknowledgment was sent, with data or in a packet of its own.
func (r *receiver) noteAckSent(byData bool) {
	if byData { // data flows in this direction too, so that fewer acknowledgments need a packet of their own
		r.every = min(2*max(r.every, 2), 32)
	} else {
		r.every, r.gap, r.dup = 0, r.bits != nil, false
	}
	r.owed, r.due, r.now = 0, 0, false
}

// creditBeyond returns how many packets the peer may send on lane i beyond those received: its
// share of the socket's receive buffer, in which a packet takes more memory than its bytes. Modern
// uses it for lane 1 only, and divides by the peers that have sent lately; Seed divides by the
// peers with packets in flight.
func (a *Assoc) creditBeyond(i int) uint32 {
	size := 4 << 10 // most packets of lane 0 are small
	if i == 1 {
		size = a.maxDatagram() + a.maxDatagram()/8 + 1024
	}
	peers := a.m.active
	if a.m.cfg.Profile == Modern {
		peers = a.m.sharing[i].peers()
	}
	share := a.m.cfg.Receive() / max(1, peers) / size
	return uint32(max(minShare, min(share, a.m.cfg.Window)))
}

// nextAck makes an ACK of lane i, with the bitmap of the packets received out of order.
func (a *Assoc) nextAck(now time.Duration, i int, head []byte, o *Out) {
	r := &a.flight.recv[i]
	p := Packet{kind: kindAck, flags: uint8(i)}
	a.fillHeader(now, i, &p)
	if r.bits != nil {
		r.high = p.ack + r.bits.last() - 1
	}
	if r.gap {
		p.flags |= flagGap
		p.seq = r.high
	}
	if r.dup {
		p.flags |= flagDup
	}
	a.m.stats.Acks++
	if r.gap || r.dup {
		a.m.stats.DupAcks++
	}
	head = p.append(head)
	if r.bits != nil {
		for w := uint32(0); w < (r.bits.last()+63)/64; w++ {
			head = binary.LittleEndian.AppendUint64(head, r.bits[w])
		}
	}
	seal(head)
	r.noteAckSent(false)
	*o = Out{Head: head}
}

// handleAck handles the acknowledgment in packet p, which isPlausible has checked: it releases
// acknowledged packets, and looks for lost ones.
func (a *Assoc) handleAck(now time.Duration, p *Packet) {
	f, i := a.takeFlight(), p.lane()
	s, l := &f.send[i], &a.lane[i]
	a.sample(now, p) // also of a packet that is late: the echoed timestamp is exact
	if before(l.edge, p.edge) {
		l.edge = p.edge
	}
	if before(p.ack, l.una) {
		return
	}
	selected := a.selective && p.kind == kindAck && a.handleSelective(p)
	if a.state == dead { // Upper.Sent has called Cut
		return
	}
	advanced := l.una != p.ack
	// The second condition is true only if the peer contradicts its selective acknowledgment.
	for before(l.una, p.ack) || l.una != s.high && s.at(l.una).flags&pktAcked != 0 {
		seq := l.una
		q := s.at(seq)
		if q.flags&pktAcked == 0 {
			a.ackOne(s, q, p)
		} else {
			s.sacked--
		}
		if before(s.snd, seq+1) { // during go-back-n: the packet was not lost after all
			s.snd = seq + 1
		}
		s.cost -= int(q.units)
		a.finAcked = a.finAcked || q.flags&pktFin != 0
		if a.release(i, seq); a.state == dead {
			return
		}
		*s.at(seq) = packet{} // not *q: Upper.Sent may have added packets, and the ring may have grown
		l.una++
	}
	if before(s.recover, l.una) {
		s.recover = l.una
	}
	answered := s.probing && p.flags&flagEcho != 0 && !before(p.echo, clock(s.probed))
	s.probing = s.probing && !answered
	if a.selective {
		a.recover(now, i, advanced || selected, answered)
	} else {
		a.goBackAfter(now, p, advanced, answered)
	}
	a.round(now)
	a.m.wakeBlocked()
}

// ackOne records that the peer has packet q. It counts the last transmission as arrived only if the
// echoed timestamp is not older than that: otherwise an earlier transmission may be the one that
// arrived.
func (a *Assoc) ackOne(s *sender, q *packet, p *Packet) {
	a.flight.cc.acked += int(q.size)
	if q.flags&pktLost != 0 {
		s.lost--
		q.flags &^= pktLost
	}
	if q.flags&pktResent == 0 || p.flags&flagEcho != 0 && !before(p.echo, clock(q.sent)) {
		s.noteArrived(q.order)
	}
}

// wakeBlocked wakes the associations that could not send because the packets of others had used up
// MaxRetained.
func (m *Machine) wakeBlocked() {
	if len(m.starved) == 0 || m.stats.Retained >= m.cfg.MaxRetained {
		return
	}
	for _, a := range m.starved {
		if a.state != dead {
			if a.flight != nil {
				a.flight.starved = false
			}
			m.wake(a)
		}
	}
	clear(m.starved)
	m.starved = m.starved[:0]
}
