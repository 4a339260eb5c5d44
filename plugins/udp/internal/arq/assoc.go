package arq

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/timeheap"
)

// A state of an association. docs: the picture in doc.go.
type state uint8

const (
	dialing   state = iota // HELLO is repeated until it is answered
	half                   // admitted; the peer has not shown that it receives: only ACCEPT is sent
	open                   // packets flow
	finishing              // nothing new; FIN follows when all is acknowledged
	lingering              // all is said; repeated packets are acknowledged once more
	dead                   // in no table
)

// An Assoc is an association with one peer: two lanes each way. What it needs only while packets are under way is in its flight.
type Assoc struct {
	User any

	m       *Machine
	to      netip.AddrPort
	flight  *flight // nil: nothing is under way
	next    *Assoc
	due     time.Duration // in Machine.timers
	session uint64        // of the peer, if it has dialed
	sentAt  time.Duration // lane 0: when a packet was sent last

	lane [2]lane

	id, token           uint32         // chosen here: what comes in
	peerID, peerToken   uint32         // chosen there: what goes out
	sibling             uint32         // slot of an older association with the same hash of the address
	place               timeheap.Index // in Machine.timers
	srtt, rttvar, least uint32         // us
	cwnd                uint32         // bytes
	mtu, most           uint16         // datagrams: known to arrive, worth trying
	restart             uint16         // lane 0: packets that the peer takes after a pause

	state                       state
	via                         uint8
	form                        uint8 // of the packets, once the version is agreed; before that 0
	queued                      bool
	local, selective, slowStart bool
	peerFin, ourFin, finAcked   bool
}

// A lane is the numbers of one direction each way. They are serial.
type lane struct {
	una     uint32 // sent: the oldest that is not acknowledged
	nxt     uint32 // sent: the next to be given
	edge    uint32 // sent: the first that the peer does not allow yet
	rcv     uint32 // received: the next that is expected
	granted uint32 // received: the first that is not allowed yet
	// Of Modern: the first that was not promised yet, and the epoch in which one came last. The peer may have given back what lies
	// between promised and granted.
	promised, epoch uint32
}

func (l *lane) init(first uint32) { l.una, l.nxt, l.edge = first, first, first }

// A flight is what an association needs while packets are under way. It comes from a pool.
type flight struct {
	send [2]sender
	recv [2]receiver
	cc   congestion

	flying    int  // bytes sent and neither acknowledged nor lost
	blocked   bool // Room has said no
	starved   bool // because of others
	turn      int
	turnBytes int

	ts, lastEcho  uint32        // latest clock of the peer; latest of our clocks that came back
	tsAt          time.Duration // when ts came
	tsSet, echoed bool
	latest        time.Duration // round trip that was measured last

	ping      pinger
	dial      dialer
	hints     int           // probes that are left after the system said that nobody is there
	finDue    time.Duration // the end of finishing or lingering
	words     []byte        // of FIN
	open      []byte        // lane 0: the packet that frames are added to
	openCount uint16
	barrier   uint32 // lane 0: the packet that pieces may not overtake
	barred    bool
}

// dropFlight forgets what is under way, unreported.
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

// Detach makes void what is left of bulk data, and reports none of it. The association goes on without a User.
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

// maxDatagram is the largest datagram that may be sent now.
func (a *Assoc) maxDatagram() int { return int(a.mtu) }

// Addr returns the peer's address.
func (a *Assoc) Addr() netip.AddrPort { return a.to }

// Up reports whether frames and pieces may be given to a.
func (a *Assoc) Up() bool { return (a.state == open || a.state == half) && !a.peerFin }

// isPlausible reports whether a packet that names a can be true. It changes nothing.
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
				return false // of packets that were never sent
			}
		}
		return p.kind == kindAck || !before(l.granted, p.seq) && !before(p.seq, l.rcv-4*maxAhead)
	}
	return true
}

// handlePacket takes a packet that is a's.
func (a *Assoc) handlePacket(now time.Duration, p *Packet) {
	if p.kind == kindAccept || p.kind == kindCookie {
		a.dialed(now, p)
		return
	}
	if a.state == dialing && p.kind != kindRefuse {
		return
	}
	if a.state == half {
		a.state = open
		a.m.stats.HalfOpen--
		a.flight.finDue = 0
		a.path(now)
	}
	a.m.up.Heard(a)
	if f := a.flight; f != nil {
		f.hints, f.ping.confirm, f.ping.plain = 0, false, false
	}
	switch p.kind {
	case kindData:
		a.heardClock(now, p)
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
		if a.heardClock(now, p); a.m.cfg.Profile == Modern { // the clock of ACCEPT comes back
			a.sample(now, p)
		}
		a.takeFlight().ping.answer, a.flight.ping.asked = true, p.seq
	case kindPong:
		a.sample(now, p)
		a.ponged(now, p)
	}
}

// nextPacket makes the next packet of a, or reports false.
func (a *Assoc) nextPacket(now time.Duration, head []byte, o *Out) bool {
	f := a.flight
	if f == nil {
		return false
	}
	if a.state == dialing || a.state == half {
		return a.emitHello(now, o)
	}
	f.cc.waits = false
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

// goIdle is called when a has nothing to send now: its timer is set, or its flight is given back.
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

// onDeadline is called when the time of a has come, or earlier.
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

// deadline returns when a has something to do; 0: never.
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
