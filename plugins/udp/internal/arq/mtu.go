package arq

import (
	"net/netip"
	"time"
)

// A pinger is the state of PING and PONG, which confirm an association, probe for the path MTU, and
// determine whether the peer is alive.
type pinger struct {
	// confirm is set while the peer may not know that its ACCEPT was received. PING is then
	// repeated until the peer sends a packet.
	confirm bool
	plain   bool          // send a PING
	padded  bool          // send a PING padded to size bytes
	answer  bool          // send a PONG
	asked   uint32        // size in the PING that the PONG answers
	size    uint16        // size being probed for; 0 if none
	tries   int           // unanswered PINGs of that size
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
	hintProbes   = 3 // number of those probes
)

// probePath starts probing for the path MTU (packetization layer path MTU discovery, RFC 8899).
func (a *Assoc) probePath(now time.Duration) {
	if a.local {
		a.mtu = a.most
	} else if a.most > a.mtu {
		f := a.takeFlight()
		f.ping.size, f.ping.padded = a.most, true
		f.ping.due = now + a.rto()
	}
}

// emitPing emits a pending PONG or PING.
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

// handlePong handles a PONG, which shows that datagrams of the probed size arrive.
func (a *Assoc) handlePong(now time.Duration, p *Packet) {
	pg := &a.takeFlight().ping
	if pg.size == 0 || p.seq != uint32(pg.size) {
		return
	}
	a.mtu = pg.size
	pg.size, pg.tries, pg.padded, pg.due = 0, 0, false, 0
}

// pingExpired repeats unanswered PINGs or, after too many, concludes that the peer is gone or that
// the size is too large.
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

// Unsendable handles the system's error for sending to addr, which no other host can cause. A dial
// fails. An open association continues, because the peer may become reachable before its retries
// are exhausted.
func (m *Machine) Unsendable(addr netip.AddrPort, err error) {
	for a := m.at(addr); a != nil; {
		older := m.older(a)
		if a.state == dialing {
			a.end(End{Outcome: PeerGone, Messages: a.unackedMessages(), Absent: true, Unsent: err})
		}
		a = older
	}
}

// blackHole reduces the datagram size to one that every path carries, because large datagrams seem
// to be lost after a route change. Packets that already have a number are then sent in fragments.
func (a *Assoc) blackHole() {
	if !a.local {
		a.mtu = BaseSize
	}
}

// Refused handles the system's report that the port of addr is unreachable. The underlying ICMP
// message can be forged. Refused therefore fails a dial, which can be repeated, but only makes an
// open association probe the peer. The peer counts as gone if it does not answer hintProbes PINGs.
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
