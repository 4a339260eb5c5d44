package arq

import (
	"encoding/binary"
	"time"
)

// A receiver is what one lane of what is received owes the peer.
type receiver struct {
	owed  int                   // packets taken since the last acknowledgment
	due   time.Duration         // when it is sent by itself
	high  uint32                // the highest number received, if gap
	every uint8                 // adaptive: packets that are acknowledged together
	now   bool                  // it is due
	gap   bool                  // packets are missing
	dup   bool                  // one has come twice
	bits  *bitmap               // packets that have come out of order
	held  map[uint32]heldPacket // lane 0: those, by number
	units int                   // numbers that they use up
}

// ackDelay is how long Adaptive waits for a packet to go with.
const ackDelay = time.Millisecond

// noteTaken notes that a packet was taken, and decides when that is acknowledged.
func (a *Assoc) noteTaken(now time.Duration, i int, p *Packet) {
	r := &a.flight.recv[i]
	r.owed++
	r.now = r.now || p.flags&flagAckNow != 0 // the sender waits for it
	switch a.m.cfg.Ack {
	case Eager:
		r.now = true
	case Adaptive:
		r.every = max(r.every, uint8(2+6*i)) // of messages every second one (RFC 5681 4.2), of bulk data every eighth
		if r.owed >= int(r.every) {
			r.now = true
		} else if r.due == 0 {
			r.due = now + ackDelay
		}
	}
}

// hasPacket reports whether the packet that is that far ahead of the next expected one has come.
func (r *receiver) hasPacket(ahead uint32) bool {
	return r.bits != nil && ahead < maxAhead && r.bits.has(ahead)
}

// noteGap notes that a packet has come which is not taken, because others are missing before it.
func (a *Assoc) noteGap(r *receiver, p *Packet) {
	a.m.stats.OutOfOrder++
	if !r.gap || before(r.high, p.seq) {
		r.high = p.seq
	}
	r.now, r.gap = true, true
}

// advance notes that a packet was taken, and returns how many have come without a gap from the next expected one on. Only a lane with a gap
// has a bitmap.
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
	n = r.bits.ones() // it closes the first gap, and all that has come behind it counts
	if r.bits.shift(n); r.bits.last() == 0 {
		m.bitmaps = append(m.bitmaps, r.bits)
		r.bits, r.gap = nil, false
	}
	return n
}

// fillHeader fills in the acknowledgment that a packet of lane i carries, and what else all packets have.
func (a *Assoc) fillHeader(now time.Duration, i int, p *Packet) {
	l := &a.lane[i]
	p.form, p.id, p.token, p.ts = a.form, a.peerID, a.peerToken, clock(now)
	p.ack = l.rcv
	p.edge = a.grantLimit(i)
	// The peer's clock goes back with how long it was kept here, so that waiting for a packet to go with does not look like a slow path.
	if f := a.flight; f.tsSet && now-f.tsAt < 8*time.Microsecond<<16 {
		p.flags |= flagEcho
		p.echo, p.delay = f.ts, uint16((now-f.tsAt)/(8*time.Microsecond))
	}
}

// grantLimit returns the first number of lane i that the peer may not use yet. What was granted once is not taken back, though the share of the
// buffer has shrunk since: the peer may have used it.
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

// noteAckSent notes that packet p has carried the acknowledgment of lane i.
func (r *receiver) noteAckSent(byData bool) {
	if byData { // acknowledgments find packets to go with: packets of their own may come less often
		r.every = min(2*max(r.every, 2), 32)
	} else {
		r.every, r.gap, r.dup = 0, r.bits != nil, false
	}
	r.owed, r.due, r.now = 0, 0, false
}

// creditBeyond is how many packets the peer may send on lane i beyond those received: its share of the socket's buffer, in which a
// packet takes more than its bytes. Modern has it for lane 1 alone, and Seed divides by the peers with packets under way.
func (a *Assoc) creditBeyond(i int) uint32 {
	size := 4 << 10 // most are small
	if i == 1 {
		size = a.maxDatagram() + a.maxDatagram()/8 + 1024
	}
	peers := a.m.active
	if a.m.cfg.Profile == Modern {
		peers = a.m.sharing[i].peers()
	}
	share := a.m.cfg.Receive() / max(1, peers) / size
	return uint32(max(leastOpen, min(share, a.m.cfg.Window)))
}

// nextAck makes a packet that only acknowledges lane i.
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

// handleAck takes the acknowledgment that packet p carries. expects has agreed to it.
func (a *Assoc) handleAck(now time.Duration, p *Packet) {
	f, i := a.takeFlight(), p.lane()
	s, l := &f.send[i], &a.lane[i]
	a.sample(now, p) // of a packet that is late as well: its clock says when it was sent
	if before(l.edge, p.edge) {
		l.edge = p.edge
	}
	if before(p.ack, l.una) {
		return
	}
	selected := a.selective && p.kind == kindAck && a.selected(p)
	if a.state == dead { // the user has cut it in Upper.Sent
		return
	}
	advanced := l.una != p.ack
	for before(l.una, p.ack) || l.una != s.high && s.at(l.una).flags&pktAcked != 0 { // the second only if the peer contradicts itself
		seq := l.una
		q := s.at(seq)
		if q.flags&pktAcked == 0 {
			a.ackOne(s, q, p)
		} else {
			s.sacked--
		}
		if before(s.snd, seq+1) { // while going back: what was to be repeated has come after all
			s.snd = seq + 1
		}
		s.cost -= int(q.units)
		a.finAcked = a.finAcked || q.flags&pktFin != 0
		if a.release(i, seq); a.state == dead {
			return
		}
		*s.at(seq) = packet{} // not q: the user may have given packets since, and the ring have grown
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

// ackOne notes that the peer has packet q. That it has come by its last transmission is only certain if p echoes a clock which is not
// older.
func (a *Assoc) ackOne(s *sender, q *packet, p *Packet) {
	a.flight.cc.acked += int(q.size)
	if q.flags&pktLost != 0 {
		s.lost--
		q.flags &^= pktLost
	}
	if q.flags&pktResent == 0 || p.flags&flagEcho != 0 && !before(p.echo, clock(q.sent)) {
		s.arrived(q.order)
	}
}

// wakeBlocked tells those whom others kept from sending that there is room.
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
