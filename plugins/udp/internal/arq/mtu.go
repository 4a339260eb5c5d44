package arq

import (
	"net/netip"
	"time"
)

// A pinger sends packets that ask for an answer: to confirm an association, to find out what the path carries, and to make sure
// that somebody is there.
type pinger struct {
	confirm bool          // the peer does not know yet that we have heard it
	plain   bool          // send a PING
	padded  bool          // send one of size bytes
	answer  bool          // send a PONG
	asked   uint32        // for
	size    uint16        // that is tried; 0: none
	tries   int           // of it
	due     time.Duration // to send them again
	times   int           // that confirm was sent again
}

// rungs are the sizes that are tried one after the other, from the largest that the path is said to carry: of loopback, of jumbo
// frames, of Ethernet with IPv4 and with IPv6.
var rungs = [...]int{MaxSize, 32 << 10, 16 << 10, 8972, 4 << 10, 1472, 1452}

const (
	sizeTries  = 3
	hintEvery  = 5 * time.Millisecond
	hintProbes = 3
)

// path begins to find out what the path carries, which RFC 8899 calls probing from the packetization layer.
func (a *Assoc) path(now time.Duration) {
	if a.local {
		a.mtu = a.most
	} else if a.most > a.mtu {
		f := a.takeFlight()
		f.ping.size, f.ping.padded = a.most, true
		f.ping.due = now + a.rto()
	}
}

// emitPing makes the PONG or PING that is wanted.
func (a *Assoc) emitPing(now time.Duration, head []byte, o *Out) {
	pg := &a.flight.ping
	p := Packet{kind: kindPing, seq: headSize}
	pad := 0
	switch {
	case pg.answer:
		pg.answer = false
		p.kind, p.seq = kindPong, pg.asked
	case pg.plain:
		pg.plain = false
	default:
		pg.padded = false
		p.seq, pad = uint32(pg.size), int(pg.size)-headSize
		if a.m.zeros == nil {
			a.m.zeros = make([]byte, MaxSize)
		}
	}
	a.fillHeader(now, 0, &p)
	p.ack, p.edge = 0, 0
	head = p.append(head)
	*o = Out{Head: head, Body: a.m.zeros[:pad]}
	seal(head, o.Body)
}

// ponged takes the answer to a PING.
func (a *Assoc) ponged(now time.Duration, p *Packet) {
	pg := &a.takeFlight().ping
	if pg.size == 0 || p.seq != uint32(pg.size) {
		return
	}
	a.mtu = pg.size
	pg.size, pg.tries, pg.padded, pg.due = 0, 0, false, 0
}

// pingExpired sends again what was not answered.
func (a *Assoc) pingExpired(now time.Duration) {
	f := a.flight
	pg := &f.ping
	if pg.due == 0 || now < pg.due {
		return
	}
	pg.due = 0
	if f.hints > 0 {
		if f.hints--; f.hints == 0 {
			a.endSilent(true)
			return
		}
		pg.plain, pg.due = true, now+max(hintEvery, a.rtt())
		return
	}
	if pg.size != 0 {
		if pg.tries++; pg.tries >= sizeTries {
			a.smaller()
		}
		pg.padded = pg.size != 0
	}
	if pg.plain = pg.confirm; pg.confirm {
		if pg.times++; a.tooMany(pg.times) {
			a.endSilent(false)
			return
		}
	}
	if pg.plain || pg.padded {
		pg.due = now + min(a.rto()<<min(max(pg.times, pg.tries), 16), a.m.cfg.MaxRTO)
	}
}

// smaller tries the next rung.
func (a *Assoc) smaller() {
	pg := &a.flight.ping
	pg.tries = 0
	for _, r := range rungs {
		r -= a.m.cfg.Overhead
		if r < int(pg.size) && r > int(a.mtu) {
			pg.size = uint16(r)
			return
		}
	}
	pg.size = 0
}

// TooLarge says that the system refuses to send n bytes to addr in one datagram.
func (m *Machine) TooLarge(addr netip.AddrPort, n int) {
	for a := m.at(addr); a != nil; a = m.older(a) {
		if f := a.flight; f != nil && n == int(f.ping.size) {
			a.smaller()
			f.ping.padded = f.ping.size != 0
			m.wake(a)
		} else if n > BaseSize && n <= int(a.mtu) {
			a.blackHole()
		}
	}
}

// Unsendable says that the system does not send to addr, and why. Nobody else can make it say so: a dial ends. Whom there is an association
// with may be reached again before it is given up.
func (m *Machine) Unsendable(addr netip.AddrPort, err error) {
	for a := m.at(addr); a != nil; {
		older := m.older(a)
		if a.state == dialing {
			a.end(End{Outcome: PeerGone, Messages: a.unackedMessages(), Absent: true, Unsent: err})
		}
		a = older
	}
}

// blackHole goes back to what every path carries, when large packets are lost for good: a route has changed. Those that have
// their number already may be fragmented.
func (a *Assoc) blackHole() {
	if !a.local {
		a.mtu = BaseSize
	}
}

// Refused is called when the system says that nobody receives at addr. Anybody can make it say so: a dial ends, because it may be
// tried again, but a peer is asked, and it is gone if it does not answer at once.
func (m *Machine) Refused(now time.Duration, addr netip.AddrPort) {
	for a := m.at(addr); a != nil; {
		older := m.older(a)
		a.doubt(now)
		a = older
	}
}

func (a *Assoc) doubt(now time.Duration) {
	if a.state == dialing {
		a.endSilent(true)
		return
	}
	if f := a.takeFlight(); f.hints == 0 {
		f.hints = hintProbes
		f.ping.plain, f.ping.due = true, now+max(hintEvery, a.rtt())
		a.m.wake(a)
	}
}
