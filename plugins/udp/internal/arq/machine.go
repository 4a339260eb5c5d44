package arq

import (
	"math/bits"
	"net/netip"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/timeheap"
)

// An Upper is the user of a Machine. The Machine calls its methods from within Receive, Poll, Next
// and the methods of Assoc. They may call the methods of Assoc, but none of Machine.
type Upper interface {
	// Admit decides about a peer that requests an association. verified: the peer has shown that it
	// receives at from. dialing is this side's own dial to the same address, or nil.
	Admit(from netip.AddrPort, hello []byte, verified bool, dialing *Assoc) Admission
	// Hello appends this side's HELLO of package na. It is the same each time for one association.
	Hello(a *Assoc, dst []byte) []byte
	// Greet takes the peer's answer to Dial. If it returns an error the association ends.
	Greet(a *Assoc, hello []byte) error
	// Deliver takes the body of the next packet of lane 0: whole frames, or a part of a large one.
	// It must copy what it keeps.
	Deliver(a *Assoc, body []byte)
	// Heard is called for each plausible packet of the peer.
	Heard(a *Assoc)
	// Place takes a packet of bulk data: the bytes at offset at of the piece that front describes.
	// Each byte is placed once.
	Place(a *Assoc, front *[FrontSize]byte, at int, payload []byte)
	// Sent is called when the peer has acknowledged all of the piece of ref, also if it was void.
	Sent(a *Assoc, ref any)
	// Room is called when there is room after Assoc.Room has returned that there is none.
	Room(a *Assoc)
	// Finishing is called when the peer has sent FIN, with its last message. The association then
	// ends by itself.
	Finishing(a *Assoc, words []byte)
	// Ended is called when an association that was dialed or admitted has ended, except by Cut. If
	// the reason is the peer's silence, Ended may call Cut with a last message, which the peer may
	// read later.
	Ended(a *Assoc, e End)
}

// An Admission is the answer to a peer that requests an association.
type Admission struct {
	User     any    // not nil: the peer is admitted, and this is its Assoc.User
	Path     Path   // the path to an admitted peer
	Crossing bool   // it is the peer that this side is dialing: one association serves both dials
	Cookie   bool   // the peer has to show a cookie first; only if it is not verified
	Words    []byte // otherwise the message of the refusal, up to 256 bytes; empty: no answer
}

// A Path describes the path to a peer.
type Path struct {
	Size  int  // the largest datagram in bytes that is worth probing for; below BaseSize means BaseSize
	Local bool // the peer is on this machine: Size need not be probed for, and there is no congestion
}

// An Out is a packet to send: Head, Body, and N bytes at offset At of the memory that Ref stands
// for, which the caller copies.
type Out struct {
	To       netip.AddrPort
	Via      uint8  // Packet.Via of the first packet of the association
	Assoc    *Assoc // nil: the packet belongs to no association
	Head     []byte // in the memory that Next was given
	Body     []byte // read only; valid until the next call other than Next and Void
	Ref      any    // nil: the packet is Head and Body, with its checksum
	At, N    int
	Again    bool // it was sent before
	Fragment bool // it is larger than the path is known to carry, and is to be sent in fragments

	packet *packet
}

// Size returns the number of bytes of the datagram.
func (o *Out) Size() int { return len(o.Head) + len(o.Body) + o.N }

// Seal writes the checksum of a packet whose Ref is not nil. payload is its N bytes.
func (o *Out) Seal(payload ...[]byte) { seal(o.Head, payload...) }

// Stats counts packets and their fate. Retained, HalfOpen and Peers are gauges.
type Stats struct {
	// packets with a number: sent, sent again, sent as probes, sent without their data
	Sent, Resent, Probes, Voids int64
	// packets that only acknowledge; those of them that report a gap or a duplicate
	Acks, DupAcks                     int64
	Delivered, Duplicates, OutOfOrder int64 // received packets with a number
	// packets of bulk data that were dropped because they had overtaken their barrier
	Early int64
	// packets of no association; implausible ones; packets dropped at a limit
	Stale, Invalid, Dropped int64
	Cookies, Resets         int64
	Timeouts, GoneBack      int64
	// bytes of packets that are kept for retransmission, or out of order
	Retained        int64
	HalfOpen, Peers int
}

const (
	// of an association's ID; the 6 bits above count the uses of the slot, the last 8 are the
	// context
	slotBits      = 18
	slotMask      = 1<<slotBits - 1
	maxControl    = 256                   // limits the queued packets that are sent once
	resetInterval = 10 * time.Millisecond // in this time at most 16 RESETs are sent
	train         = 64                    // limits the packets to one peer before another peer's turn
	trainBytes    = 64 << 10              // limits their bytes
)

// A Machine is the protocol state of one context: packets and the time go in, packets and a
// deadline come out. Several may share a socket, whose user passes each packet to the one that
// Packet.Context names. After Receive, Poll, and the methods of Assoc, call Next until it reports
// false. It is not safe for concurrent use.
type Machine struct {
	cfg   Config
	up    Upper
	stats Stats

	slots []slot
	free  []uint32 // the unused slots
	// by hash of the address: the slot of the newest association; Assoc.sibling has the older ones
	byAddr  map[uint64]uint32
	hashKey [2]uint64
	secret  [32]byte // the key of cookies
	// the cookies that have started an association, and the time of that
	cookies   map[[cookieSize]byte]time.Duration
	shut      bool
	finishing bool
	ending    int // associations in state finishing or lingering

	ready    queue // the associations that may have packets to send
	timers   timeheap.Heap[Assoc]
	starved  []*Assoc // associations that wait for Stats.Retained to fall
	control  []Out    // packets that are sent once
	resets   int      // the RESETs since resetsAt
	resetsAt time.Duration
	active   int // associations with a flight
	held     int // numbers of the receive buffer that held packets use up
	sharing  [2]laneSharing
	division bufferDivision

	// Free lists, and zeros for padding.
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

// Finish makes the Machine give up a peer after FinRetries timeouts in a row from now on, because
// only acknowledgments of the last messages are still needed.
func (m *Machine) Finish() { m.finishing = true }

// Shut makes the Machine ignore every HELLO from now on.
func (m *Machine) Shut() { m.shut = true }

// Lingering reports whether there are associations whose orderly end is under way.
func (m *Machine) Lingering() bool { return m.ending > 0 }

func (m *Machine) rand32() uint64 {
	var b [4]byte
	m.cfg.Rand(b[:])
	return uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24
}

// hash returns a keyed hash of an address: without the key a peer cannot choose addresses that
// collide.
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

// full reports whether there are MaxPeers associations.
func (m *Machine) full() bool { return m.stats.Peers >= m.cfg.MaxPeers }

// enter assigns an association its slot, ID and token. m must not be full.
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

// leave removes an association from every table, and makes it dead.
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

// find returns the association with an ID, or nil.
func (m *Machine) find(id uint32) *Assoc {
	i := id & slotMask
	if int(i) < len(m.slots) && m.slots[i].a != nil && m.slots[i].a.id == id {
		return m.slots[i].a
	}
	return nil
}

// at returns the newest association with an address, or nil; older returns the others.
func (m *Machine) at(addr netip.AddrPort) *Assoc { return m.match(m.byAddr[m.hash(addr)], addr) }

// Has reports whether there is an association with an address.
func (m *Machine) Has(addr netip.AddrPort) bool { return m.at(addr) != nil }

func (m *Machine) older(a *Assoc) *Assoc { return m.match(a.sibling, a.to) }

// match returns the first association with addr in the list of siblings that starts at slot i.
func (m *Machine) match(i uint32, addr netip.AddrPort) *Assoc {
	for ; i != 0; i = m.slots[i].a.sibling {
		if m.slots[i].a.to == addr {
			return m.slots[i].a
		}
	}
	return nil
}

// Receive handles a packet that Parse has returned. It keeps no reference to it.
func (m *Machine) Receive(now time.Duration, from netip.AddrPort, p *Packet) {
	switch p.kind {
	case kindHello:
		m.handleHello(now, from, p)
		return
	case kindReset:
		m.handleReset(now, from, p)
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

// Poll runs the timers that have expired.
func (m *Machine) Poll(now time.Duration) {
	for a, due := m.timers.First(); a != nil && due <= now; a, due = m.timers.First() {
		m.timers.Remove(&a.place)
		a.onDeadline(now)
		if a.state != dead {
			m.wake(a)
		}
	}
}

// Deadline returns when the next timer expires, and whether there is one. It is valid only after
// Next has reported false.
func (m *Machine) Deadline() (time.Duration, bool) {
	a, due := m.timers.First()
	return due, a != nil
}

// Next returns the next packet to send, and reports whether there is one. It writes the front of
// the packet to head, which has room for HeadSize bytes. Associations take turns of at most train
// packets.
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
		if a.state != dead && a.notifyRoom() {
			continue
		}
		m.ready.pop()
		if a.state != dead {
			a.goIdle(now)
		}
	}
	return Out{}, false
}

// Void makes o, and the other packets of its piece, packets without payload, because their memory
// may not be read any more. It is called before Seal, and only if o.Ref is not nil.
func (m *Machine) Void(o *Out) {
	m.stats.Voids++
	o.packet.piece.void = true
	o.packet.size -= int32(o.N)
	o.Assoc.flight.flying -= o.N
	o.N, o.Ref = 0, nil
	o.Head[1] |= flagVoid
	seal(o.Head)
}

// wake makes Next consider a.
func (m *Machine) wake(a *Assoc) { m.ready.push(a) }

// sendOnce queues a packet that is not sent again. It drops the packet if maxControl are queued.
func (m *Machine) sendOnce(to netip.AddrPort, via uint8, a *Assoc, p Packet, parts ...[]byte) {
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

// answerStale answers a packet of an unknown association with RESET, which is not longer. It sends
// at most 16 RESETs in resetsEvery.
func (m *Machine) answerStale(now time.Duration, from netip.AddrPort, p *Packet) {
	if p.kind == kindRefuse || p.kind == kindCookie {
		return
	}
	if now-m.resetsAt >= resetInterval {
		m.resets, m.resetsAt = 0, now
	}
	if m.resets++; m.resets <= 16 {
		m.stats.Resets++
		m.sendOnce(from, p.Via, nil, Packet{kind: kindReset, token: p.token, seq: p.id})
	}
}

// reset handles a RESET: it ends the association that the peer does not know. A RESET has the token
// of the packet that it answers, so that only a host on the path can forge it.
func (m *Machine) handleReset(now time.Duration, from netip.AddrPort, p *Packet) {
	for a := m.at(from); a != nil; a = m.older(a) {
		if a.state != dialing && a.peerID == p.seq && a.peerToken == p.token {
			a.endSilent(true)
			return
		}
	}
	m.stats.Stale++
}
