package arq

import (
	"net/netip"
	"time"
)

// A pinger holds the state of an association's PING and PONG packets, which confirm the
// association, probe for the path MTU, and determine whether the peer is alive.
type pinger struct {
	// confirm is set while the peer may not know that its ACCEPT was received. PING is then
	// repeated until the peer sends a packet.
	confirm bool
	plain   bool          // whether to send a PING
	padded  bool          // whether to send a PING padded to size bytes
	answer  bool          // whether to send a PONG
	asked   uint32        // size in the PING that the PONG answers
	size    uint16        // size being probed for; 0 if none
	tries   int           // number of unanswered PINGs of that size
	due     time.Duration // time at which unanswered PINGs are repeated
	times   int           // number of times the PING for confirm was repeated
}

// probeSizes are the datagram sizes to probe for, in order, starting with the largest one that the
// path may carry. They are those of loopback, of jumbo frames, and of Ethernet with IPv4 and with
// IPv6.
var probeSizes = [...]int{MaxSize, 32 << 10, 16 << 10, 8972, 4 << 10, 1472, 1452}

const (
	// sizeTries is the number of unanswered PINGs of a size before the next smaller size is probed
	// for.
	sizeTries = 3
	// hintInterval is the minimum time between two probes after an unreachable port was reported.
	hintInterval = 5 * time.Millisecond
	hintProbes   = 3 // number of probes after such a report
)

// probePath starts probing for the path MTU as in RFC 8899 (packetization layer path MTU
// discovery).
func (a *Assoc) probePath(now time.Duration) {
	if a.local {
		a.mtu = a.most
	} else if a.most > a.mtu {
		f := a.takeFlight()
		f.ping.size, f.ping.padded = a.most, true
		f.ping.due = now + a.rto()
	}
}

// emitPing stores a pending PONG or PING in o.
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

// handlePong handles a PONG. It raises the datagram size to the size that the PONG confirms.
func (a *Assoc) handlePong(now time.Duration, p *Packet) {
	pg := &a.takeFlight().ping
	if pg.size == 0 || p.seq != uint32(pg.size) {
		return
	}
	a.mtu = pg.size
	pg.size, pg.tries, pg.padded, pg.due = 0, 0, false, 0
}

// pingExpired handles expiry of the timer for PINGs. It repeats an unanswered PING. After too many
// repetitions, it concludes that the peer is gone or, for a size probe, that the size is too large.
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
		pg.plain, pg.due = true, now+max(hintInterval, a.rtt())
		return
	}
	if pg.size != 0 {
		if pg.tries++; pg.tries >= sizeTries {
			a.probeSmaller()
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

// probeSmaller starts probing for the next smaller size.
func (a *Assoc) probeSmaller() {
	pg := &a.flight.ping
	pg.tries = 0
	for _, r := range probeSizes {
		r -= a.m.cfg.Overhead
		if r < int(pg.size) && r > int(a.mtu) {
			pg.size = uint16(r)
			return
		}
	}
	pg.size = 0
}

// TooLarge handles the system's refusal to send a datagram of n bytes to addr.
func (m *Machine) TooLarge(addr netip.AddrPort, n int) {
	for a := m.at(addr); a != nil; a = m.older(a) {
		if f := a.flight; f != nil && n == int(f.ping.size) {
			a.probeSmaller()
			f.ping.padded = f.ping.size != 0
			m.wake(a)
		} else if n > BaseSize && n <= int(a.mtu) {
			a.blackHole()
		}
	}
}

// Unsendable handles err, the system's error for sending to addr. Unlike the report of an
// unreachable port, such an error cannot be forged by another host. A dial to addr fails. An open
// association continues, because the peer may become reachable before the retries are exhausted.
func (m *Machine) Unsendable(addr netip.AddrPort, err error) {
	for a := m.at(addr); a != nil; {
		older := m.older(a)
		if a.state == dialing {
			a.end(End{Outcome: PeerGone, Messages: a.unackedMessages(), Absent: true, Unsent: err})
		}
		a = older
	}
}

// blackHole reduces the datagram size to BaseSize, which every path carries. It is called when
// large datagrams seem to be lost, as after a route change. Packets that already have a number are
// then sent in fragments.
func (a *Assoc) blackHole() {
	if !a.local {
		a.mtu = BaseSize
	}
}

// Refused handles the system's report that the port of addr is unreachable. Because the ICMP
// message behind the report can be forged, Refused fails only dials, which can be repeated. It
// makes an open association probe the peer, which counts as gone if it does not answer hintProbes
// PINGs.
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
		f.ping.plain, f.ping.due = true, now+max(hintInterval, a.rtt())
		a.m.wake(a)
	}
}
