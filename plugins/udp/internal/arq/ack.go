package arq

import (
	"encoding/binary"
	"time"
)

// A receiver holds the state of the receiving side of one lane: pending acknowledgments, and
// packets received out of order.
type receiver struct {
	owed  int                   // number of packets received since the last acknowledgment
	due   time.Duration         // time to send an acknowledgment without data; 0 if none is pending
	high  uint32                // highest number received; valid if gap
	every uint8                 // Adaptive: number of packets covered by one acknowledgment
	now   bool                  // whether an acknowledgment must be sent immediately
	gap   bool                  // whether packets are missing
	dup   bool                  // whether a packet has arrived twice
	bits  *bitmap               // packets received out of order; nil if there are none
	held  map[uint32]heldPacket // lane 0: packets in bits, by number
	units int                   // lane 0: numbers used by the held packets; see share.go
}

// ackDelay is how long Adaptive delays an acknowledgment in order to send it with data.
const ackDelay = time.Millisecond

// noteTaken records that packet p of lane i was received, and determines when to acknowledge it.
func (a *Assoc) noteTaken(now time.Duration, i int, p *Packet) {
	r := &a.flight.recv[i]
	r.owed++
	r.now = r.now || p.flags&flagAckNow != 0
	switch a.m.cfg.Ack {
	case Eager:
		r.now = true
	case Adaptive:
		// Acknowledge every second message packet (RFC 5681, Section 4.2) and every eighth bulk
		// packet.
		r.every = max(r.every, uint8(2+6*i))
		if r.owed >= int(r.every) {
			r.now = true
		} else if r.due == 0 {
			r.due = now + ackDelay
		}
	}
}

// hasPacket reports whether packet rcv+ahead has already been received, where rcv is the next
// expected number.
func (r *receiver) hasPacket(ahead uint32) bool {
	return r.bits != nil && ahead < maxAhead && r.bits.has(ahead)
}

// noteGap records that p was dropped because earlier packets are missing.
func (a *Assoc) noteGap(r *receiver, p *Packet) {
	a.m.stats.OutOfOrder++
	if !r.gap || before(r.high, p.seq) {
		r.high = p.seq
	}
	r.now, r.gap = true, true
}

// advance records that packet rcv+ahead was received, where rcv is the next expected number. It
// returns the number of consecutive packets that have arrived, starting with rcv. It allocates a
// bitmap only if there is a gap.
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

// fillHeader sets the header fields of p that all packets have in common, including the
// acknowledgment of lane i.
func (a *Assoc) fillHeader(now time.Duration, i int, p *Packet) {
	l := &a.lane[i]
	p.form, p.id, p.token, p.ts = a.form, a.peerID, a.peerToken, clock(now)
	p.ack = l.rcv
	p.edge = a.grantLimit(i)
	// The peer's timestamp is echoed together with the time for which it was held, so that a
	// delayed acknowledgment does not look like a slow path.
	if f := a.flight; f.tsSet && now-f.tsAt < 8*time.Microsecond<<16 {
		p.flags |= flagEcho
		p.echo, p.delay = f.ts, uint16((now-f.tsAt)/(8*time.Microsecond))
	}
}

// grantLimit returns the first packet number of lane i that the peer may not use yet. The result
// never decreases, even when the peer's share of the buffer shrinks, because the peer may already
// have used the numbers before it.
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

// noteAckSent records that an acknowledgment was sent. byData reports whether it was sent with data
// rather than in a separate packet.
func (r *receiver) noteAckSent(byData bool) {
	if byData { // data flows in this direction too, so fewer separate acknowledgments are needed
		r.every = min(2*max(r.every, 2), 32)
	} else {
		r.every, r.gap, r.dup = 0, r.bits != nil, false
	}
	r.owed, r.due, r.now = 0, 0, false
}

// creditBeyond returns the number of packets that the peer may send on lane i beyond those
// received. The result is the peer's share of the socket's receive buffer, in which a packet
// occupies more memory than its length. Modern uses creditBeyond for lane 1 only, and divides the
// buffer by the number of peers that have sent recently. Seed divides it by the number of peers
// with packets in flight.
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

// nextAck stores an ACK for lane i in o, with the bitmap of the packets received out of order.
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

// handleAck handles the acknowledgment in packet p, which must have passed isPlausible. It releases
// acknowledged packets and detects losses.
func (a *Assoc) handleAck(now time.Duration, p *Packet) {
	f, i := a.takeFlight(), p.lane()
	s, l := &f.send[i], &a.lane[i]
	a.sample(now, p) // even if the packet is late, because the echoed timestamp is exact
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
	// The second condition is true only if the peer contradicts an earlier selective
	// acknowledgment.
	for before(l.una, p.ack) || l.una != s.high && s.at(l.una).flags&pktAcked != 0 {
		seq := l.una
		q := s.at(seq)
		if q.flags&pktAcked == 0 {
			a.ackOne(s, q, p)
		} else {
			s.sacked--
		}
		if before(s.snd, seq+1) { // during a go-back-n: the packet was not lost after all
			s.snd = seq + 1
		}
		s.cost -= int(q.units)
		a.finAcked = a.finAcked || q.flags&pktFin != 0
		if a.release(i, seq); a.state == dead {
			return
		}
		*s.at(seq) = packet{} // not *q: Upper.Sent may have added packets, reallocating the ring
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

// ackOne records that the peer has received packet q, as acknowledged in p. It counts the last
// transmission of q as received only if the timestamp echoed in p is not older than that
// transmission. Otherwise an earlier transmission may have arrived.
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

// wakeBlocked wakes the associations that could not send because packets of other associations had
// used up MaxRetained.
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
