package arq

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/timeheap"
)

// A state is the state of an association; doc.go has the transitions.
type state uint8

const (
	dialing state = iota // HELLO is repeated until it is answered
	// half-open: admitted, but the peer has not shown that it receives; only ACCEPT is sent
	half
	open      // packets flow
	finishing // the user sends nothing more; FIN follows when everything is acknowledged
	lingering // both FINs are acknowledged; repeated packets are acknowledged once more
	dead      // the association is in no table
)

// An Assoc is an association with one peer, with two lanes in each direction. The state that it
// needs only while packets are in flight is in flight, so that an idle association is small. Like
// its Machine it is not safe for concurrent use.
type Assoc struct {
	User any

	m       *Machine
	to      netip.AddrPort
	flight  *flight       // nil: nothing is in flight
	next    *Assoc        // in Machine.ready
	due     time.Duration // when its timer in Machine.timers expires
	session uint64        // the peer's session number, if the peer has dialed
	sentAt  time.Duration // lane 0: when a packet was sent last

	lane [2]lane

	id, token         uint32         // chosen here, and carried by received packets
	peerID, peerToken uint32         // chosen by the peer, and carried by sent packets
	sibling           uint32         // the slot of an older association with the same hash of the address
	place             timeheap.Index // the index in Machine.timers
	// the smoothed round trip, its variation, and the least round trip, in us
	srtt, rttvar, least uint32
	cwnd                uint32 // the congestion window in bytes
	// the largest datagram that is known to arrive; the largest worth probing for
	mtu, most uint16
	restart   uint16 // lane 0: the numbers that the peer grants after an idle period

	state                       state
	via                         uint8 // the local address that the peer uses: see Packet.Via
	form                        uint8 // the form of the packets: see formOf; 0 until the version is agreed
	queued                      bool  // it is in Machine.ready
	local, selective, slowStart bool
	peerFin, ourFin, finAcked   bool
}

// A lane holds the packet numbers of one lane, in both directions. Numbers are serial: they wrap.
type lane struct {
	una     uint32 // sending: the oldest number that is not acknowledged
	nxt     uint32 // sending: the next number to be assigned
	edge    uint32 // sending: the first number that the peer does not allow yet
	rcv     uint32 // receiving: the next number that is expected
	granted uint32 // receiving: the first number that is not allowed yet
	// Modern, receiving: the first number that is not promised, and the last epoch in which a
	// packet arrived: see share.go. The peer may have given back the numbers between promised and
	// granted.
	promised, epoch uint32
}

func (l *lane) init(first uint32) { l.una, l.nxt, l.edge = first, first, first }

// A flight is the state of an association that has packets in flight. It comes from a pool.
type flight struct {
	send [2]sender
	recv [2]receiver
	cc   congestion

	flying    int  // bytes that were sent and are neither acknowledged nor lost
	blocked   bool // Room has returned that there is none; Upper.Room is to be called
	starved   bool // the association is in Machine.starved
	turn      int  // packets sent in this turn of Machine.Next
	turnBytes int

	// the peer's latest timestamp; the latest timestamp of this side that was echoed
	ts, lastEcho  uint32
	tsAt          time.Duration // when ts was received
	tsSet, echoed bool          // ts and lastEcho are valid
	latest        time.Duration // the last sample of the round trip

	ping      pinger
	dial      dialer
	hints     int           // probes that are left after the system has reported an unreachable port
	finDue    time.Duration // when half, finishing or lingering ends
	words     []byte        // the last message, which FIN carries
	open      []byte        // lane 0: the packet that frames are added to; nil: there is none
	openCount uint16        // the messages in open
	barrier   uint32        // lane 0: the packet that pieces may not overtake; valid if barred
	barred    bool
}

// dropFlight releases all packets in flight without reporting them.
func (a *Assoc) dropFlight() {
	a.Detach()
	if f := a.flight; f != nil {
		a.m.free0(f.open)
		f.open = nil
		for i := range a.lane {
			for l := &a.lane[i]; l.una != l.nxt; l.una++ {
				a.release(i, l.una)
			}
		}
		a.returnFlight()
	}
}

// Detach voids the rest of the bulk data, so that its memory is not read any more, and does not
// report it to Upper.Sent. The association goes on without a User.
func (a *Assoc) Detach() {
	a.User = nil
	if f := a.flight; f != nil {
		for seq := a.lane[1].una; seq != a.lane[1].nxt; seq++ {
			if p := f.send[1].at(seq); p.piece != nil {
				p.piece.void, p.piece.ref = true, nil
			}
		}
	}
}

// maxDatagram returns the size of the largest datagram that may be sent now.
func (a *Assoc) maxDatagram() int { return int(a.mtu) }

// Addr returns the peer's address.
func (a *Assoc) Addr() netip.AddrPort { return a.to }

// Up reports whether Frame and Piece may be called.
func (a *Assoc) Up() bool { return (a.state == open || a.state == half) && !a.peerFin }

// isPlausible reports whether the numbers in a packet for a are possible. A packet with others is
// forged, or damaged without TLS. It has no effect.
func (a *Assoc) isPlausible(p *Packet) bool {
	if p.form != a.form && p.form != 0 {
		return false
	}
	switch p.kind {
	case kindAccept, kindCookie:
		return a.state == dialing || p.kind == kindAccept
	case kindData, kindAck:
		if a.state == dialing {
			return false
		}
		l, high := &a.lane[p.lane()], a.lane[p.lane()].una
		if a.flight != nil {
			high = a.flight.send[p.lane()].high
		}
		if before(high, p.ack) || before(p.ack, l.una-2*maxAhead) || before(p.ack+maxAhead, p.edge) {
			return false
		}
		if p.kind == kindAck && len(p.body) > 0 {
			last := len(p.body) - 8
			top := 64 - bits.LeadingZeros64(binary.LittleEndian.Uint64(p.body[last:]))
			if before(high, p.ack+uint32(8*last+top)) || p.body[0]&1 != 0 {
				return false // it acknowledges packets that were never sent
			}
		}
		return p.kind == kindAck || !before(l.granted, p.seq) && !before(p.seq, l.rcv-4*maxAhead)
	}
	return true
}

// handlePacket handles a plausible packet of a.
func (a *Assoc) handlePacket(now time.Duration, p *Packet) {
	if p.kind == kindAccept || p.kind == kindCookie {
		a.handleDialAnswer(now, p)
		return
	}
	if a.state == dialing && p.kind != kindRefuse {
		return
	}
	if a.state == half {
		a.state = open
		a.m.stats.HalfOpen--
		a.flight.finDue = 0
		a.probePath(now)
	}
	a.m.up.Heard(a)
	if f := a.flight; f != nil {
		f.hints, f.ping.confirm, f.ping.plain = 0, false, false
	}
	switch p.kind {
	case kindData:
		a.noteTimestamp(now, p)
		a.joinSharing(now, p.lane())
		a.handleAck(now, p)
		if a.state == dead {
			return
		}
		if p.lane() == 0 {
			a.take0(now, p)
		} else {
			a.take1(now, p)
		}
	case kindAck:
		a.handleAck(now, p)
	case kindRefuse:
		a.endRefused(p)
	case kindPing:
		if a.noteTimestamp(now, p); a.m.cfg.Profile == Modern { // it echoes the timestamp of ACCEPT
			a.sample(now, p)
		}
		a.takeFlight().ping.answer, a.flight.ping.asked = true, p.seq
	case kindPong:
		a.sample(now, p)
		a.handlePong(now, p)
	}
}

// nextPacket makes the next packet of a, and reports whether there is one. The order: handshake,
// PING and PONG, messages, bulk data, FIN, acknowledgments without data.
func (a *Assoc) nextPacket(now time.Duration, head []byte, o *Out) bool {
	f := a.flight
	if f == nil {
		return false
	}
	if a.state == dialing || a.state == half {
		return a.emitHello(now, o)
	}
	f.cc.paced = false
	if pg := &f.ping; pg.answer || pg.plain || pg.padded {
		a.emitPing(now, head, o)
		return true
	}
	for i := range f.send {
		if seq, ok := a.choose(now, i); ok {
			a.transmit(now, i, seq, head, o)
			return true
		}
	}
	if a.state == finishing && a.continueRelease(now) {
		return a.nextPacket(now, head, o)
	}
	for i := range f.recv {
		if f.recv[i].now {
			a.nextAck(now, i, head, o)
			return true
		}
	}
	return false
}

// goIdle sets the timer of a, which has no packet to send, or returns its flight to the pool if no
// packet is in flight.
func (a *Assoc) goIdle(now time.Duration) {
	due := time.Duration(0)
	if a.flight != nil {
		due = a.deadline(now)
	}
	switch {
	case due != 0:
		if a.place == 0 || due < a.due {
			a.due = due
			a.m.timers.Set(a, &a.place, due)
		}
	default:
		a.m.timers.Remove(&a.place)
		if f := a.flight; f != nil && a.lane[0].una == a.lane[0].nxt && a.lane[1].una == a.lane[1].nxt &&
			f.recv[0].owed == 0 && f.recv[1].owed == 0 && f.recv[0].bits == nil && f.recv[1].bits == nil && a.state == open && !f.blocked {
			a.returnFlight()
		}
	}
}

// onDeadline runs the timers of a that have expired.
func (a *Assoc) onDeadline(now time.Duration) {
	if a.flight == nil {
		return
	}
	if a.state == dialing {
		a.redial(now)
		return
	}
	if a.finExpired(now) {
		return
	}
	if a.pingExpired(now); a.state == dead {
		return
	}
	for i := range a.flight.send {
		if a.onTimeout(now, i); a.state == dead {
			return
		}
	}
	for i := range a.flight.recv {
		if r := &a.flight.recv[i]; r.due != 0 && now >= r.due {
			r.now = true
		}
	}
}

// deadline returns when the next timer of a expires, 0 if none is set.
func (a *Assoc) deadline(now time.Duration) time.Duration {
	f := a.flight
	due := time.Duration(0)
	sooner := func(t time.Duration) {
		if t != 0 && (due == 0 || t < due) {
			due = t
		}
	}
	for i := range f.send {
		sooner(f.send[i].due)
		sooner(f.recv[i].due)
	}
	sooner(f.ping.due)
	sooner(f.dial.due)
	sooner(f.finDue)
	sooner(a.pacedUntil(now))
	return due
}
