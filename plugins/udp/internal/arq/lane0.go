package arq

import "time"

// MaxFrame is the size of the largest frame. A frame that is larger than a packet is split across
// several packets, and starts at the beginning of the first one.
const MaxFrame = 72 << 10

// Room returns the size of the largest frame that Frame currently accepts, or -1, and the number of
// bytes that Piece currently accepts, or 0. If there is no space for either, Upper.Room is called
// when there is space for both.
func (a *Assoc) Room(now time.Duration) (frame, piece int) {
	frame = -1
	if !a.Up() {
		return frame, 0
	}
	a.giveBack(now)
	m, f := a.m, a.takeFlight()
	m.wake(a)
	// Frames are copied and retained until they are acknowledged, so MaxRetained limits the frames
	// of all peers. Pieces are not copied.
	full := m.stats.Retained >= m.cfg.MaxRetained
	if !full && a.freePackets(0) > 0 {
		frame = MaxFrame
	}
	piece = max(0, a.freePackets(1)) * (a.maxDatagram() - headSize - bulkSize)
	if frame < 0 || piece == 0 {
		f.blocked = true
	}
	return frame, piece
}

// freePackets returns the number of packets that may be added to lane i. At most train packets may
// wait for their first transmission.
func (a *Assoc) freePackets(i int) int {
	l, f := &a.lane[i], a.flight
	given := l.nxt
	if i == 0 && f.open != nil {
		given++
	}
	return min(a.m.cfg.Window-int(given-l.una), train-int(given-f.send[i].high))
}

// notifyRoom calls Upper.Room if there is space and the last call to Room reported none. It reports
// whether it called Upper.Room.
func (a *Assoc) notifyRoom() bool {
	f := a.flight
	if f == nil || !f.blocked || !a.Up() {
		return false
	}
	if m := a.m; m.stats.Retained >= m.cfg.MaxRetained {
		if !f.starved {
			m.starved, f.starved = append(m.starved, a), true
		}
		return false
	}
	// The user needs space on both lanes.
	if a.freePackets(0) <= 0 || a.freePackets(1) <= 0 {
		return false
	}
	f.blocked = false
	a.m.up.Room(a)
	return true
}

// Frame copies a frame, which consists of front and payload, into the packets of lane 0. front is
// not split. The frame must not be larger than Room permits. If message is true, the frame counts
// in End.Messages until it is acknowledged.
func (a *Assoc) Frame(front, payload []byte, message bool) {
	f, most := a.takeFlight(), a.largest0()-headSize
	a.m.wake(a)
	if f.open != nil && len(f.open)+len(front)+len(payload) > most {
		// A frame that fits in a packet is not split, so that the loss of one packet delays fewer
		// frames.
		a.close0()
	}
	for {
		n := min(len(payload), most-len(front))
		a.grow0(len(front) + n)
		f.open = append(append(f.open, front...), payload[:n]...)
		if front, payload = nil, payload[n:]; len(payload) == 0 {
			if message {
				f.openCount++
			}
			return
		}
		a.close0()
	}
}

// HasFrames reports whether a has frames that have never been sent.
func (a *Assoc) HasFrames() bool {
	f := a.flight
	return f != nil && (f.open != nil || f.send[0].high != a.lane[0].nxt)
}

// grow0 ensures that the open packet of lane 0 has space for n more bytes, reallocating it if
// necessary.
func (a *Assoc) grow0(n int) {
	f := a.flight
	if old := f.open; cap(old)-len(old) < n {
		f.open = append(a.m.alloc0(len(old)+n), old...)
		a.m.free0(old)
	}
}

// close0 assigns a number to the open packet of lane 0. The packet must not change afterward,
// because every transmission of a number must have the same bytes.
func (a *Assoc) close0() {
	f := a.flight
	*f.send[0].push(&a.lane[0]) = packet{body: f.open, messages: f.openCount}
	f.open, f.openCount = nil, 0
}

// Barrier makes the receiver accept subsequent pieces only after the most recent frame. Otherwise
// the lanes are not ordered relative to each other. A receiver drops a packet of lane 1 that
// arrives before its barrier, as if it were lost.
func (a *Assoc) Barrier() {
	f := a.takeFlight()
	a.m.wake(a)
	f.barrier, f.barred = a.lane[0].nxt, true
	if f.open == nil {
		f.barrier--
	}
}

// unfly subtracts p, which has been acknowledged or lost, from the bytes in flight. lost reports
// whether it was lost.
func (a *Assoc) unfly(p *packet, lost bool) {
	a.flight.flying -= int(p.size)
	if lost {
		a.flight.cc.lost += int(p.size)
		a.flight.send[0].cost -= int(p.units)
		p.units = 0
	}
	p.size = 0
}

// A heldPacket is a packet of lane 0 that was received out of order.
type heldPacket struct {
	body []byte
	fin  bool
}

// take0 handles a received packet of lane 0. With profile Modern, if there is space, take0 holds a
// packet received out of order until the packets before it have arrived, and acknowledges it
// selectively. With profile Seed it drops such a packet.
func (a *Assoc) take0(now time.Duration, p *Packet) {
	m, r, l := a.m, &a.flight.recv[0], &a.lane[0]
	ahead := p.seq - l.rcv
	switch {
	case before(p.seq, l.rcv) || r.hasPacket(ahead):
		// This is a duplicate. The acknowledgment was lost or is late, so repeat it immediately.
		m.stats.Duplicates++
		r.now, r.dup = true, true
		return
	case ahead > 0 && !a.hold(r, p, ahead):
		a.noteGap(r, p)
		return
	}
	n := a.advance(r, ahead)
	a.noteTaken(now, 0, p)
	if n == 0 {
		return
	}
	a.deliver0(now, p.flags&flagFin != 0, p.body)
	for ; n > 1 && a.state != dead; n-- { // if Upper.Deliver has ended a, dropFlight has freed the held packets
		h := r.held[l.rcv]
		delete(r.held, l.rcv)
		a.unhold(r, h)
		a.deliver0(now, h.fin, h.body)
		m.free0(h.body)
	}
}

// deliver0 passes the body of the next packet of lane 0 to Upper.Deliver or, if fin is true, to
// handleFin.
func (a *Assoc) deliver0(now time.Duration, fin bool, body []byte) {
	a.m.stats.Delivered++
	a.noteUsed()
	if fin {
		a.handleFin(now, body)
	} else if a.User != nil {
		a.m.up.Deliver(a, body)
	}
}

// hold retains p, which was received out of order, and reports whether there was space for it. Held
// packets count as if they were still in the socket's receive buffer. Those of one peer may not
// exceed the numbers granted to it, and those of all peers may not exceed the buffer. A packet of a
// peer that respects its grant is therefore never rejected because of other packets of that peer.
func (a *Assoc) hold(r *receiver, p *Packet, ahead uint32) bool {
	m, l := a.m, &a.lane[0]
	n := numbersFor(headSize + len(p.body))
	if m.cfg.Profile == Seed || ahead >= maxAhead || r.units+n > int(l.granted-l.rcv) || m.held+n > m.divideBuffer().units {
		return false
	}
	if r.held == nil {
		r.held = map[uint32]heldPacket{}
	}
	r.held[p.seq] = heldPacket{append(m.alloc0(len(p.body)), p.body...), p.flags&flagFin != 0}
	r.units += n
	m.held += n
	return true
}

// unhold frees h and the space that it occupies.
func (a *Assoc) unhold(r *receiver, h heldPacket) {
	n := numbersFor(headSize + len(h.body))
	r.units -= n
	a.m.held -= n
}

// dropHeld frees all packets held by r.
func (a *Assoc) dropHeld(r *receiver) {
	for _, h := range r.held {
		a.unhold(r, h)
		a.m.free0(h.body)
	}
	r.held = nil
}
