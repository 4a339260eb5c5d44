package arq

import (
	"math/bits"
	"net/netip"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/timeheap"
)

// An Upper is the user of a Machine. Its methods are called from within Receive, Poll, Next and the methods of Assoc. They may
// call the methods of Assoc, but none of Machine.
type Upper interface {
	// Admit decides about a peer that asks for an association. verified: it has shown that it receives at from. dialing, if
	// not nil, is our own attempt to reach the same address.
	Admit(from netip.AddrPort, hello []byte, verified bool, dialing *Assoc) Admission
	// Hello appends what the peer is told of us: the same each time for one association.
	Hello(a *Assoc, dst []byte) []byte
	// Greet is called with the answer to Dial. After an error the association is gone.
	Greet(a *Assoc, hello []byte) error
	// Deliver takes the body of the next packet of lane 0: whole frames, or a piece of a large one. It copies what it keeps.
	Deliver(a *Assoc, body []byte)
	// Heard is called for each packet of the peer that is to be believed.
	Heard(a *Assoc)
	// Place takes a packet of bulk data: the bytes at offset at of the piece that front describes. Each byte comes once.
	Place(a *Assoc, front *[FrontSize]byte, at int, payload []byte)
	// Sent is called when the peer has all of the piece that ref stands for, or it was void.
	Sent(a *Assoc, ref any)
	// Room is called when there is room after Room of a has said that there is none.
	Room(a *Assoc)
	// Finishing is called when the peer has nothing more to send, with its last words. The association ends by itself.
	Finishing(a *Assoc, words []byte)
	// Ended is called when an association that was dialed or admitted is over, but not after Cut. If that is because the peer was silent
	// for too long, Ended may Cut with last words, which the peer may read yet.
	Ended(a *Assoc, e End)
}

// An Admission is the answer to a peer that asks for an association.
type Admission struct {
	User     any    // non-nil: admitted, and what Assoc.User will be
	Path     Path   // to the peer
	Crossing bool   // it is the peer that we are dialing: one association for both
	Cookie   bool   // it has to show first that it receives; only if that was not verified
	Words    []byte // otherwise: why not, up to 256 bytes. None: no answer
}

// A Path is what is known of the way to a peer.
type Path struct {
	Size  int  // the largest datagram in bytes that is worth trying; below BaseSize means BaseSize
	Local bool // the same machine: Size is certain, and nothing is congested
}

// An Out is a packet to send: Head, Body, and N bytes at offset At of what Ref stands for, which the caller gathers.
type Out struct {
	To       netip.AddrPort
	Via      uint8  // of the first packet of the association
	Assoc    *Assoc // nil: for a stranger
	Head     []byte // in the room that Next was given
	Body     []byte // do not change; valid until the next call that is not Next or Void
	Ref      any    // nil: the packet is Head and Body, and sealed
	At, N    int
	Again    bool // it was sent before
	Fragment bool // larger than the path is known to carry: it is to be sent in fragments

	packet *packet
}

// Size returns the number of bytes of the datagram.
func (o *Out) Size() int { return len(o.Head) + len(o.Body) + o.N }

// Seal writes the checksum of a packet whose Ref is not nil. payload is its N bytes.
func (o *Out) Seal(payload ...[]byte) { seal(o.Head, payload...) }

// Stats counts packets, and what became of them.
type Stats struct {
	Sent, Resent, Probes, Voids       int64 // packets with a number
	Acks, DupAcks                     int64 // packets that only acknowledge; DupAcks: with gap or dup
	Delivered, Duplicates, OutOfOrder int64 // received
	Early                             int64 // bulk data dropped because its opening message was missing
	Stale, Invalid, Dropped           int64 // of no association; not to be believed; for lack of room
	Cookies, Resets                   int64
	Timeouts, GoneBack                int64
	Retained                          int64 // bytes kept until acknowledged, or until those before have come: a gauge
	HalfOpen, Peers                   int   // gauges
}

const (
	slotBits    = 18 // of an identity; the six above count the times that a slot was used, the last eight are the context
	slotMask    = 1<<slotBits - 1
	maxControl  = 256 // packets to strangers that wait to be sent
	resetsEvery = 10 * time.Millisecond
	train       = 64       // packets to one peer before it is another's turn
	trainBytes  = 64 << 10 // the same in bytes
)

// A Machine is the protocol state of one context: packets and the time go in, packets and a deadline come out. Several may share
// a socket, whose user gives each packet to the one that Packet.Context names. After
// Receive, Poll, and the methods of Assoc, call Next until it reports false. It is not safe for concurrent use.
type Machine struct {
	cfg   Config
	up    Upper
	stats Stats

	slots     []slot
	free      []uint32          // slots
	byAddr    map[uint64]uint32 // hash of an address: slot of the newest association; the others by Assoc.sibling
	hashKey   [2]uint64
	secret    [32]byte                           // key of cookies
	cookies   map[[cookieSize]byte]time.Duration // that have begun an association, and when that was
	shut      bool
	finishing bool
	ending    int // associations that Finish was called for, or the peer's Finish

	ready    queue
	timers   timeheap.Heap[Assoc]
	starved  []*Assoc // wait for others' packets to be acknowledged
	control  []Out
	resets   int
	resetsAt time.Duration
	active   int // associations with a flight
	held     int // units of the receive buffer that packets of lane 0 take which have come out of order
	sharing  [2]laneSharing
	division bufferDivision

	flights []*flight
	pieces  []*piece
	bitmaps []*bitmap
	bufs    [len(bufClasses)][][]byte
	zeros   []byte
}

type slot struct {
	a   *Assoc
	gen uint8
}

// New returns a Machine without associations.
func New(cfg Config, up Upper) *Machine {
	m := &Machine{cfg: cfg.withDefaults(), up: up, byAddr: map[uint64]uint32{}, slots: make([]slot, 1)}
	m.cfg.Rand(m.secret[:])
	m.hashKey = [2]uint64{m.rand32()<<32 | m.rand32(), m.rand32()<<32 | m.rand32()}
	return m
}

// Stats returns the counts so far.
func (m *Machine) Stats() Stats { return m.stats }

// Finish gives up a peer after FinRetries timeouts in a row from now on: there is nothing to come but what confirms the last messages.
func (m *Machine) Finish() { m.finishing = true }

// Shut makes the Machine ignore who asks for an association from now on.
func (m *Machine) Shut() { m.shut = true }

// Lingering reports whether associations have begun to end and are not over yet.
func (m *Machine) Lingering() bool { return m.ending > 0 }

func (m *Machine) rand32() uint64 {
	var b [4]byte
	m.cfg.Rand(b[:])
	return uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24
}

// hash is keyed, so that nobody can make addresses collide.
func (m *Machine) hash(ap netip.AddrPort) uint64 {
	b := ap.Addr().As16()
	h := m.hashKey[0] ^ uint64(ap.Port())
	for i := 0; i < 16; i += 8 {
		var v uint64
		for j := range 8 {
			v |= uint64(b[i+j]) << (8 * j)
		}
		hi, lo := bits.Mul64(h^v, m.hashKey[1]|1)
		h = hi ^ lo
	}
	return h
}

// full reports whether there are as many associations as are allowed.
func (m *Machine) full() bool { return m.stats.Peers >= m.cfg.MaxPeers }

// enter gives an association its slot, identity and token. Not if m is full.
func (m *Machine) enter(a *Assoc) {
	var i uint32
	if n := len(m.free); n > 0 {
		i, m.free = m.free[n-1], m.free[:n-1]
	} else {
		i = uint32(len(m.slots))
		m.slots = append(m.slots, slot{})
	}
	s := &m.slots[i]
	s.a = a
	a.id = contextID(m.cfg.Context) | uint32(s.gen&63)<<slotBits | i
	a.token = uint32(m.rand32())
	a.lane[0].init(uint32(m.rand32()))
	a.lane[1].init(uint32(m.rand32()))
	key := m.hash(a.to)
	a.sibling = m.byAddr[key]
	m.byAddr[key] = i
	m.stats.Peers++
}

// leave takes an association out of every table. It is dead then.
func (m *Machine) leave(a *Assoc) {
	if a.state == dead {
		return
	}
	a.dropFlight()
	a.leaveSharing(0)
	a.leaveSharing(1)
	if a.state == half {
		m.stats.HalfOpen--
	}
	if a.state >= finishing {
		m.ending--
	}
	a.state = dead
	m.timers.Remove(&a.place)
	i := a.id & slotMask
	key := m.hash(a.to)
	if m.byAddr[key] == i {
		if a.sibling == 0 {
			delete(m.byAddr, key)
		} else {
			m.byAddr[key] = a.sibling
		}
	} else {
		for at := m.byAddr[key]; at != 0; at = m.slots[at].a.sibling {
			if m.slots[at].a.sibling == i {
				m.slots[at].a.sibling = a.sibling
				break
			}
		}
	}
	m.slots[i] = slot{gen: m.slots[i].gen + 1}
	m.free = append(m.free, i)
	m.stats.Peers--
	m.wakeBlocked()
}

// find returns the association that a packet names, or nil.
func (m *Machine) find(id uint32) *Assoc {
	i := id & slotMask
	if int(i) < len(m.slots) && m.slots[i].a != nil && m.slots[i].a.id == id {
		return m.slots[i].a
	}
	return nil
}

// at returns the newest association with that address; the others follow by older.
func (m *Machine) at(addr netip.AddrPort) *Assoc { return m.match(m.byAddr[m.hash(addr)], addr) }

// Has reports whether there is an association with that address.
func (m *Machine) Has(addr netip.AddrPort) bool { return m.at(addr) != nil }

func (m *Machine) older(a *Assoc) *Assoc { return m.match(a.sibling, a.to) }

func (m *Machine) match(i uint32, addr netip.AddrPort) *Assoc {
	for ; i != 0; i = m.slots[i].a.sibling {
		if m.slots[i].a.to == addr {
			return m.slots[i].a
		}
	}
	return nil
}

// Receive takes a packet that Parse has returned. It keeps nothing of it.
func (m *Machine) Receive(now time.Duration, from netip.AddrPort, p *Packet) {
	switch p.kind {
	case kindHello:
		m.hello(now, from, p)
		return
	case kindReset:
		m.reset(now, from, p)
		return
	}
	a := m.find(p.id)
	if a == nil || a.token != p.token {
		m.stats.Stale++
		m.answerStale(now, from, p)
		return
	}
	if a.to != from || !a.isPlausible(p) {
		m.stats.Invalid++
		return
	}
	a.handlePacket(now, p)
	if a.state != dead {
		m.wake(a)
	}
}

// Poll does what is due.
func (m *Machine) Poll(now time.Duration) {
	for a, due := m.timers.First(); a != nil && due <= now; a, due = m.timers.First() {
		m.timers.Remove(&a.place)
		a.onDeadline(now)
		if a.state != dead {
			m.wake(a)
		}
	}
}

// Deadline returns when Poll has something to do; false: never. It is true only after Next has reported false.
func (m *Machine) Deadline() (time.Duration, bool) {
	a, due := m.timers.First()
	return due, a != nil
}

// Next returns the next packet to send now. The front of it is written to head, which has HeadSize bytes.
func (m *Machine) Next(now time.Duration, head []byte) (o Out, ok bool) {
	if n := len(m.control); n > 0 {
		o = m.control[0]
		copy(m.control, m.control[1:])
		m.control[n-1] = Out{}
		m.control = m.control[:n-1]
		return o, true
	}
	for a := m.ready.first; a != nil; a = m.ready.first {
		if a.state != dead && a.nextPacket(now, head[:0], &o) {
			o.To, o.Via, o.Assoc = a.to, a.via, a
			if f := a.flight; f != nil {
				f.turn++
				f.turnBytes += o.Size()
				if f.turn >= train || f.turnBytes+a.maxDatagram() > trainBytes {
					f.turn, f.turnBytes = 0, 0
					m.ready.rotate()
				}
			}
			return o, true
		}
		if a.state != dead && a.roomAgain() {
			continue
		}
		m.ready.pop()
		if a.state != dead {
			a.goIdle(now)
		}
	}
	return Out{}, false
}

// Void says that the memory of o may not be touched any more: o becomes a packet without payload, and so do the others of its
// piece. Before Seal, and only if o.Ref is not nil.
func (m *Machine) Void(o *Out) {
	m.stats.Voids++
	o.packet.piece.void = true
	o.packet.size -= int32(o.N)
	o.Assoc.flight.flying -= o.N
	o.N, o.Ref = 0, nil
	o.Head[1] |= flagVoid
	seal(o.Head)
}

// wake sees to it that Next looks at a.
func (m *Machine) wake(a *Assoc) { m.ready.push(a) }

// tell queues a packet that is sent once.
func (m *Machine) tell(to netip.AddrPort, via uint8, a *Assoc, p Packet, parts ...[]byte) {
	if len(m.control) >= maxControl {
		m.stats.Dropped++
		return
	}
	b := p.append(make([]byte, 0, BaseSize))
	for _, part := range parts {
		b = append(b, part...)
	}
	seal(b)
	m.control = append(m.control, Out{To: to, Via: via, Assoc: a, Head: b[:headSize], Body: b[headSize:]})
}

// answerStale tells the sender of a packet that its association is not known here. The answer is not longer.
func (m *Machine) answerStale(now time.Duration, from netip.AddrPort, p *Packet) {
	if p.kind == kindRefuse || p.kind == kindCookie {
		return
	}
	if now-m.resetsAt >= resetsEvery {
		m.resets, m.resetsAt = 0, now
	}
	if m.resets++; m.resets <= 16 {
		m.stats.Resets++
		m.tell(from, p.Via, nil, Packet{kind: kindReset, token: p.token, seq: p.id})
	}
}

// reset ends the association whose packets the peer does not know. Only who has seen such a packet knows the token.
func (m *Machine) reset(now time.Duration, from netip.AddrPort, p *Packet) {
	for a := m.at(from); a != nil; a = m.older(a) {
		if a.state != dialing && a.peerID == p.seq && a.peerToken == p.token {
			a.endSilent(true)
			return
		}
	}
	m.stats.Stale++
}
