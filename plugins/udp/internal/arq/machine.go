package arq

import (
	"math/bits"
	"net/netip"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/timeheap"
)

// An Upper is the user of a Machine. The Machine calls its methods from within Receive, Poll, Next
// and the methods of Assoc. The methods of an Upper may call methods of Assoc, but not of Machine.
type Upper interface {
	// Admit decides whether to accept a peer that requests an association. verified reports whether
	// the peer has shown that it receives at from. dialing is the association that this side is
	// dialing at the same address, or nil.
	Admit(from netip.AddrPort, hello []byte, verified bool, dialing *Assoc) Admission
	// Hello appends this side's HELLO of package na to dst. It must be the same on every call for
	// an association.
	Hello(a *Assoc, dst []byte) []byte
	// Greet receives the peer's answer to Dial. If it returns an error, the association ends.
	Greet(a *Assoc, hello []byte) error
	// Deliver receives the body of the next packet of lane 0, which contains whole frames or a part
	// of a large one. Deliver must not retain body.
	Deliver(a *Assoc, body []byte)
	// Heard is called for each plausible packet received from the peer.
	Heard(a *Assoc)
	// Place receives a packet of bulk data. payload is at offset at of the piece that front
	// describes. Each byte is placed once.
	Place(a *Assoc, front *[FrontSize]byte, at int, payload []byte)
	// Sent is called when the peer has acknowledged every packet of the piece represented by ref,
	// including void ones.
	Sent(a *Assoc, ref any)
	// Room is called when there is space again after Assoc.Room has reported that there is none.
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
	User     any    // if not nil, the peer is admitted, and this is its Assoc.User
	Path     Path   // path to an admitted peer
	Crossing bool   // whether this side is dialing the same peer, so that one association serves both dials
	Cookie   bool   // whether the peer must present a cookie first; permitted only for a peer that is not verified
	Words    []byte // rejection message of up to 256 bytes if User is nil and Cookie is false; empty for no reply
}

// A Path describes the path to a peer.
type Path struct {
	Size  int  // size in bytes of the largest datagram worth probing for; smaller values mean BaseSize
	Local bool // whether the peer is on this host, so that Size need not be probed for and there is no congestion
}

// An Out is a packet to send. It consists of Head, Body, and N bytes at offset At of the memory
// represented by Ref, which the caller copies.
type Out struct {
	To       netip.AddrPort
	Via      uint8  // Packet.Via of the first packet of the association
	Assoc    *Assoc // nil if the packet belongs to no association
	Head     []byte // in the memory passed to Next
	Body     []byte // read-only; valid until the next call other than Next and Void
	Ref      any    // if nil, Head and Body are the whole packet, including the checksum
	At, N    int
	Again    bool // whether the packet is a retransmission
	Fragment bool // whether the packet may exceed the path MTU and must be sent in fragments

	packet *packet
}

// Size returns the size of the datagram in bytes.
func (o *Out) Size() int { return len(o.Head) + len(o.Body) + o.N }

// Seal writes the checksum of a packet whose Ref is not nil. payload is the packet's N bytes.
func (o *Out) Seal(payload ...[]byte) { seal(o.Head, payload...) }

// Stats holds a Machine's statistics, which count packets. Retained, HalfOpen and Peers are current
// values rather than counts.
type Stats struct {
	// Sent, Resent, Probes and Voids count numbered packets that were sent for the first time,
	// retransmitted, sent as probes, and sent without their data.
	Sent, Resent, Probes, Voids int64
	// Acks counts packets that carry only an acknowledgment, and DupAcks those of them that report
	// a gap or a duplicate.
	Acks, DupAcks                     int64
	Delivered, Duplicates, OutOfOrder int64 // received numbered packets
	// Early counts packets of bulk data that were dropped because they overtook their barrier.
	Early int64
	// Stale counts packets of unknown associations, Invalid implausible packets, and Dropped
	// packets dropped at a limit.
	Stale, Invalid, Dropped int64
	Cookies, Resets         int64
	Timeouts, GoneBack      int64
	// Retained is the number of bytes in packets retained for retransmission or held out of order.
	Retained        int64
	HalfOpen, Peers int
}

const (
	// slotBits is the number of low bits of an association's ID that hold its slot. The next 6 bits
	// count the uses of the slot, and the top 8 are the context.
	slotBits      = 18
	slotMask      = 1<<slotBits - 1
	maxControl    = 256                   // maximum number of queued packets that are sent once
	resetInterval = 10 * time.Millisecond // interval in which at most 16 RESETs are sent
	train         = 64                    // maximum number of packets to one peer before another peer's turn
	trainBytes    = 64 << 10              // maximum number of bytes in them
)

// A Machine holds the protocol state of one context. Its inputs are packets and the time, and its
// outputs are packets and a deadline. If several Machines share a socket, the caller must pass each
// packet to the one identified by Packet.Context. After each call to Receive, Poll, or a method of
// Assoc, the caller must call Next until it returns false. A Machine is not safe for concurrent
// use.
type Machine struct {
	cfg   Config
	up    Upper
	stats Stats

	slots []slot
	free  []uint32 // unused slots
	// byAddr maps an address hash to the slot of the newest association. Older ones are linked by
	// Assoc.sibling.
	byAddr  map[uint64]uint32
	hashKey [2]uint64
	secret  [32]byte // key of cookies
	// cookies holds the cookies that have started an association, with the time at which they did.
	cookies   map[[cookieSize]byte]time.Duration
	shut      bool
	finishing bool
	ending    int // number of associations in state finishing or lingering

	ready    queue // associations that may have packets to send
	timers   timeheap.Heap[Assoc]
	starved  []*Assoc // associations that wait for Stats.Retained to decrease
	control  []Out    // packets that are sent once
	resets   int      // RESETs since resetsAt
	resetsAt time.Duration
	active   int // number of associations with a flight
	held     int // numbers of the receive buffer used by held packets; see share.go
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

// Stats returns a copy of the statistics.
func (m *Machine) Stats() Stats { return m.stats }

// Finish makes the Machine give up on a peer after FinRetries consecutive timeouts, because only
// acknowledgments of the last messages are still needed.
func (m *Machine) Finish() { m.finishing = true }

// Shut makes the Machine ignore every subsequent HELLO.
func (m *Machine) Shut() { m.shut = true }

// Lingering reports whether any association is in the process of closing in an orderly way.
func (m *Machine) Lingering() bool { return m.ending > 0 }

func (m *Machine) rand32() uint64 {
	var b [4]byte
	m.cfg.Rand(b[:])
	return uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24
}

// hash returns a keyed hash of an address. The key prevents peers from choosing addresses that
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

// enter assigns a slot, an ID and a token to a and adds it to the tables. m must not be full.
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

// leave removes an association from every table and marks it dead.
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

// find returns the association with the given ID, or nil if there is none.
func (m *Machine) find(id uint32) *Assoc {
	i := id & slotMask
	if int(i) < len(m.slots) && m.slots[i].a != nil && m.slots[i].a.id == id {
		return m.slots[i].a
	}
	return nil
}

// at returns the newest association with the given address, or nil if there is none. older returns
// the next older one.
func (m *Machine) at(addr netip.AddrPort) *Assoc { return m.match(m.byAddr[m.hash(addr)], addr) }

// Has reports whether there is an association with the given address.
func (m *Machine) Has(addr netip.AddrPort) bool { return m.at(addr) != nil }

func (m *Machine) older(a *Assoc) *Assoc { return m.match(a.sibling, a.to) }

// match returns the first association with the address addr in the list of siblings that starts at
// slot i, or nil if there is none.
func (m *Machine) match(i uint32, addr netip.AddrPort) *Assoc {
	for ; i != 0; i = m.slots[i].a.sibling {
		if m.slots[i].a.to == addr {
			return m.slots[i].a
		}
	}
	return nil
}

// Receive handles a packet that Parse has returned and that was sent from the address from. It does
// not retain the packet.
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

// Poll handles expired timers.
func (m *Machine) Poll(now time.Duration) {
	for a, due := m.timers.First(); a != nil && due <= now; a, due = m.timers.First() {
		m.timers.Remove(&a.place)
		a.onDeadline(now)
		if a.state != dead {
			m.wake(a)
		}
	}
}

// Deadline returns the time at which the next timer expires, and whether there is one. It is valid
// only after Next has returned false.
func (m *Machine) Deadline() (time.Duration, bool) {
	a, due := m.timers.First()
	return due, a != nil
}

// Next returns the next packet to send, and reports whether there is one. It writes the beginning
// of the packet to head, which must have space for HeadSize bytes. Associations take turns, with at
// most train packets per turn.
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

// Pending reports whether Next may have another packet to send.
func (m *Machine) Pending() bool { return len(m.control) > 0 || m.ready.first != nil }

// Void removes the payload from o and from the other packets of its piece, because their memory
// must no longer be read. It must be called before Seal, and only if o.Ref is not nil.
func (m *Machine) Void(o *Out) {
	m.stats.Voids++
	o.packet.piece.void = true
	o.packet.size -= int32(o.N)
	o.Assoc.flight.flying -= o.N
	o.N, o.Ref = 0, nil
	o.Head[1] |= flagVoid
	seal(o.Head)
}

// wake adds a to the associations that Next checks for packets to send.
func (m *Machine) wake(a *Assoc) { m.ready.push(a) }

// sendOnce queues a packet that is never retransmitted. It drops the packet if maxControl packets
// are already queued.
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

// answerStale answers a packet that belongs to no known association with a RESET, which is no
// longer than the packet. It sends at most 16 RESETs per resetInterval.
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

// handleReset handles a RESET, with which the peer reports that it does not know an association, by
// ending the association. A RESET contains the token of the packet that it answers, so only a host
// on the path can forge a RESET.
func (m *Machine) handleReset(now time.Duration, from netip.AddrPort, p *Packet) {
	for a := m.at(from); a != nil; a = m.older(a) {
		if a.state != dialing && a.peerID == p.seq && a.peerToken == p.token {
			a.endSilent(true)
			return
		}
	}
	m.stats.Stale++
}
