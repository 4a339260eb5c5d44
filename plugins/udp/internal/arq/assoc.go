package arq

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/timeheap"
)

// A state is the state of an association. The package comment shows the transitions.
type state uint8

const (
	dialing state = iota // HELLO is repeated until the peer answers it
	// half-open: admitted, but only ACCEPT is sent until the peer has shown that it receives at its
	// address
	half
	open      // packets flow in both directions
	finishing // Finish was called; FIN is sent when all other packets are acknowledged
	lingering // both FINs are acknowledged; repeated packets are acknowledged again
	dead      // removed from all tables
)

// An Assoc is an association with one peer. It has two lanes in each direction. State that is
// needed only while packets are in flight is in the field flight, so that an idle association is
// small. Like its Machine, an Assoc is not safe for concurrent use.
type Assoc struct {
	User any

	m       *Machine
	to      netip.AddrPort
	flight  *flight       // nil if nothing is in flight
	next    *Assoc        // next association whether the association is in Machine.ready
	due     time.Duration // time at which the timer in Machine.timers expires
	session uint64        // peer's session number, if the peer dialed
	sentAt  time.Duration // lane 0: time at which the last packet was sent

	lane [2]lane

	id, token         uint32         // chosen by this side; carried by received packets
	peerID, peerToken uint32         // chosen by the peer; carried by sent packets
	sibling           uint32         // slot of an older association whose address has the same hash
	place             timeheap.Index // index in Machine.timers
	// srtt is the smoothed round-trip time, rttvar its variation, and least its minimum, all in µs.
	srtt, rttvar, least uint32
	cwnd                uint32 // congestion window in bytes
	// mtu is the size of the largest datagram known to arrive, and most that of the largest one
	// worth probing for.
	mtu, most uint16
	restart   uint16 // lane 0: quantity of numbers that the peer grants after an idle period

	state                       state
	via                         uint8 // local address used by the peer; see Packet.Via
	form                        uint8 // form of the packets; see formOf; 0 until the version is agreed
	queued                      bool  // in Machine.ready
	local, selective, slowStart bool
	peerFin, ourFin, finAcked   bool
}

// A lane holds the state of the packet numbers of one lane, in both directions. The numbers wrap
// around, so they must be compared in serial arithmetic.
type lane struct {
	una     uint32 // sending: oldest unacknowledged number
	nxt     uint32 // sending: next number to assign
	edge    uint32 // sending: first number that the peer does not permit yet
	rcv     uint32 // receiving: next expected number
	granted uint32 // receiving: first number not permitted yet
	// promised and epoch are used by Modern for receiving: the first number not promised, and the
	// last epoch in which a packet arrived; see share.go. The peer may have relinquished the
	// numbers from promised up to granted.
	promised, epoch uint32
}

func (l *lane) init(first uint32) { l.una, l.nxt, l.edge = first, first, first }

// A flight holds the state that an association needs only while it has packets in flight. Flights
// are pooled.
type flight struct {
	send [2]sender
	recv [2]receiver
	cc   congestion

	flying    int  // bytes sent that are neither acknowledged nor lost
	blocked   bool // whether Room reported no space, so that Upper.Room must be called
	starved   bool // whether the association is in Machine.starved
	turn      int  // number of packets sent in this turn of Machine.Next
	turnBytes int

	// ts is the peer's latest timestamp, and lastEcho is this side's latest timestamp that was
	// echoed.
	ts, lastEcho  uint32
	tsAt          time.Duration // time at which ts was received
	tsSet, echoed bool          // whether ts and lastEcho are valid
	latest        time.Duration // last round-trip sample

	ping      pinger
	dial      dialer
	hints     int           // number of probes remaining after the system reported an unreachable port
	finDue    time.Duration // time at which the state half, finishing or lingering ends
	words     []byte        // last message, carried by FIN
	open      []byte        // lane 0: packet to which frames are being added; nil if there is none
	openCount uint16        // number of messages in open
	barrier   uint32        // lane 0: packet that pieces must not overtake; valid if barred
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

// Detach voids the bulk data that has not been acknowledged, so that its memory is no longer read.
// Upper.Sent is not called for that data. The association continues without a User.
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

// maxDatagram returns the size of the largest datagram that may currently be sent.
func (a *Assoc) maxDatagram() int { return int(a.mtu) }

// Addr returns the peer's address.
func (a *Assoc) Addr() netip.AddrPort { return a.to }

// Up reports whether a is open for sending, that is, whether Frame and Piece may be called.
func (a *Assoc) Up() bool { return (a.state == open || a.state == half) && !a.peerFin }

// isPlausible reports whether the sequence and acknowledgment numbers in p are possible in the
// current state of a. A packet with impossible numbers is forged or, without TLS, damaged.
// isPlausible does not modify a.
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
				return false // acknowledges packets that were never sent
			}
		}
		return p.kind == kindAck || !before(l.granted, p.seq) && !before(p.seq, l.rcv-4*maxAhead)
	}
	return true
}

// handlePacket handles p, a packet received from the peer that has passed isPlausible.
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
		if a.noteTimestamp(now, p); a.m.cfg.Profile == Modern { // echoes the timestamp of ACCEPT
			a.sample(now, p)
		}
		a.takeFlight().ping.answer, a.flight.ping.asked = true, p.seq
	case kindPong:
		a.sample(now, p)
		a.handlePong(now, p)
	}
}

// nextPacket stores the next packet of a in o and reports whether there is one. The order is:
// handshake, PING and PONG, messages, bulk data, FIN, acknowledgments without data.
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

// goIdle sets the timer of a or, if no packet is in flight, returns the flight of a to the pool. It
// is called when a has no packet to send.
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

// onDeadline handles the timers of a that have expired.
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

// deadline returns the time at which a's next timer expires, or 0 if none is set.
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
