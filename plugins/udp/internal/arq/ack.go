package arq

import (
	"encoding/binary"
	"time"
)

// A receiver is what one lane of what is received owes the peer.
type receiver struct {
	owed  int           // packets taken since the last acknowledgment
	due   time.Duration // when it is sent by itself
	high  uint32        // the highest number received, if gap
	every uint8         // adaptive: packets that are acknowledged together
	now   bool          // it is due
	gap   bool          // packets are missing
	dup   bool          // one has come twice
	bits  *bitmap       // lane 1: packets that have come out of order
}

// ackDelay is how long Adaptive waits for a packet to go with.
const ackDelay = time.Millisecond

// owe notes that a packet was taken, and decides when that is acknowledged.
func (a *Assoc) owe(now time.Duration, i int, p *Packet) {
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

// carry fills in the acknowledgment that a packet of lane i carries, and what else all packets have.
func (a *Assoc) carry(now time.Duration, i int, p *Packet) {
	l := &a.lane[i]
	p.id, p.token, p.ts = a.peerID, a.peerToken, clock(now)
	p.ack = l.rcv
	p.edge = a.grant(i)
	// The peer's clock goes back with how long it was kept here, so that waiting for a packet to go with does not look like a slow path.
	if f := a.flight; f.tsSet && now-f.tsAt < 8*time.Microsecond<<16 {
		p.flags |= flagEcho
		p.echo, p.delay = f.ts, uint16((now-f.tsAt)/(8*time.Microsecond))
	}
}

// grant returns the first number of lane i that the peer may not use yet. What was granted once is not taken back, though the share of the
// buffer has shrunk since: the peer may have used it.
func (a *Assoc) grant(i int) uint32 {
	l := &a.lane[i]
	if a.m.cfg.Profile == Modern && i == 0 {
		edge := a.promise()
		if before(l.granted, edge) {
			l.granted = edge
		}
		return edge
	}
	if edge := l.rcv + a.credit(i); before(l.granted, edge) {
		l.granted = edge
	}
	return l.granted
}

// settled notes that packet p has carried the acknowledgment of lane i.
func (r *receiver) settled(byData bool) {
	if byData { // acknowledgments find packets to go with: packets of their own may come less often
		r.every = min(2*max(r.every, 2), 32)
	} else {
		r.every, r.gap, r.dup = 0, r.bits != nil, false
	}
	r.owed, r.due, r.now = 0, 0, false
}

// credit is how many packets the peer may send on lane i beyond those received: its share of the socket's buffer, in which a
// packet takes more than its bytes. Modern has it for lane 1 alone, and Seed divides by the peers with packets under way.
func (a *Assoc) credit(i int) uint32 {
	size := 4 << 10 // most are small
	if i == 1 {
		size = a.size() + a.size()/8 + 1024
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
	a.carry(now, i, &p)
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
	r.settled(false)
	*o = Out{Head: head}
}

// acked takes the acknowledgment that packet p carries. expects has agreed to it.
func (a *Assoc) acked(now time.Duration, p *Packet) {
	f, i := a.fly(), p.lane()
	s, l := &f.send[i], &a.lane[i]
	a.sample(now, p) // of a packet that is late as well: its clock says when it was sent
	if before(l.edge, p.edge) {
		l.edge = p.edge
	}
	if before(p.ack, l.una) {
		return
	}
	advanced := l.una != p.ack
	if i == 0 {
		a.widen0(int(p.ack - l.una))
	}
	for l.una != p.ack {
		seq := l.una
		if q := s.at(seq); q.flags&pktAcked == 0 {
			a.ackOne(q)
		}
		if before(s.snd, seq+1) { // while going back: what was to be repeated has come after all
			s.snd = seq + 1
		}
		fin := s.at(seq).flags&pktFin != 0
		a.release(i, seq)
		if a.state == dead { // the user has cut it in Upper.Sent
			return
		}
		*s.at(seq) = packet{}
		l.una++
		a.finAcked = a.finAcked || fin
	}
	if before(s.recover, l.una) {
		s.recover = l.una
	}
	// Only then: a peer that answers without getting on is not to keep the timer from running out.
	if advanced {
		s.due, s.tries, s.early, s.probe = 0, 0, false, false
		if l.una != s.high {
			s.due = now + a.timeout(s)
		}
	}
	if a.selective && i == 1 {
		if p.kind == kindAck {
			if a.selected(now, p); a.state == dead {
				return
			}
		}
	} else if p.kind == kindAck && p.flags&flagGap != 0 {
		a.gap(now, i, p)
	}
	a.probeAnswered(now, i, p)
	a.round(now)
	a.m.feed()
}

// ackOne notes that the peer has packet q.
func (a *Assoc) ackOne(q *packet) {
	f := a.flight
	f.cc.acked += int(q.size)
	if q.piece != nil {
		s := &f.send[1]
		s.newest = max(s.newest, q.sent)
		if q.flags&pktLost != 0 {
			s.lost--
			q.flags &^= pktLost
		}
	}
}

// probeAnswered is where an expired timer ends: the peer has received a packet that was sent when it expired. What was sent
// before that, and is not acknowledged, is lost.
func (a *Assoc) probeAnswered(now time.Duration, i int, p *Packet) {
	s, l := &a.flight.send[i], &a.lane[i]
	if !s.probing || p.flags&flagEcho == 0 || before(p.echo, clock(s.probed)) {
		return
	}
	s.probing = false
	switch {
	case l.una == s.high:
	case a.selective && i == 1:
		a.loseBefore(s.probed)
	case s.at(l.una).sent < s.probed && (a.through(i) || a.inquires(i)):
		a.goBack(i)
	}
}

// feed tells those whom others kept from sending that there is room.
func (m *Machine) feed() {
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
