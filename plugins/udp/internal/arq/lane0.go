package arq

import "time"

// MaxFrame is the size of the largest frame. A frame that is larger than a packet is split over
// several, and starts at the beginning of the first.
const MaxFrame = 72 << 10

// Room returns the size of the largest frame that Frame takes now, or -1, and the number of bytes
// that Piece takes now, or 0. If either has no room, Upper.Room is called when both have.
func (a *Assoc) Room(now time.Duration) (frame, piece int) {
	frame = -1
	if !a.Up() {
		return frame, 0
	}
	a.giveBack(now)
	m, f := a.m, a.takeFlight()
	m.wake(a)
	// Frames are copied and kept until they are acknowledged, so MaxRetained limits those of all
	// peers. Pieces are not copied.
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

// freePackets returns the number of packets that lane i has room for. It limits those that wait for
// their first transmission to a train.
func (a *Assoc) freePackets(i int) int {
	l, f := &a.lane[i], a.flight
	given := l.nxt
	if i == 0 && f.open != nil {
		given++
	}
	return min(a.m.cfg.Window-int(given-l.una), train-int(given-f.send[i].high))
}

// notifyRoom calls Upper.Room if there is room and the last Room returned none. It reports
// whether it did.
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
	// the user needs room on both lanes, so wait for both
	if a.freePackets(0) <= 0 || a.freePackets(1) <= 0 {
		return false
	}
	f.blocked = false
	a.m.up.Room(a)
	return true
}

// Frame copies a frame, which is front and payload, into the packets of lane 0. front is not split.
// The frame must not be larger than Room allows. message: the frame counts in End.Messages until it
// is acknowledged.
func (a *Assoc) Frame(front, payload []byte, message bool) {
	f, most := a.takeFlight(), a.largest0()-headSize
	a.m.wake(a)
	if f.open != nil && len(f.open)+len(front)+len(payload) > most {
		// a frame that fits a packet is not split, so that the loss of one packet delays fewer
		// frames
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

// grow0 makes room for n bytes in flight.open.
func (a *Assoc) grow0(n int) {
	f := a.flight
	if old := f.open; cap(old)-len(old) < n {
		f.open = append(a.m.alloc0(len(old)+n), old...)
		a.m.free0(old)
	}
}

// close0 assigns flight.open its number. From then on it does not change, because every
// transmission of a number has the same bytes.
func (a *Assoc) close0() {
	f := a.flight
	*f.send[0].push(&a.lane[0]) = packet{body: f.open, messages: f.openCount}
	f.open, f.openCount = nil, 0
}

// Barrier makes the receiver take the pieces that follow only after the last frame. The lanes are
// not ordered otherwise. A receiver drops a packet of lane 1 that arrives before its barrier, as if
// it were lost.
func (a *Assoc) Barrier() {
	f := a.takeFlight()
	a.m.wake(a)
	f.barrier, f.barred = a.lane[0].nxt, true
	if f.open == nil {
		f.barrier--
	}
}

// unfly removes a packet, which is acknowledged or lost, from the bytes in flight.
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

// take0 handles a packet of lane 0. It keeps a packet that is out of order, if there is room, until
// those before it have arrived, and acknowledges it selectively. Seed keeps none.
func (a *Assoc) take0(now time.Duration, p *Packet) {
	m, r, l := a.m, &a.flight.recv[0], &a.lane[0]
	ahead := p.seq - l.rcv
	switch {
	case before(p.seq, l.rcv) || r.hasPacket(ahead):
		// a duplicate: the acknowledgment was lost or is late, so repeat it at once
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

// deliver0 passes the next packet of lane 0 to the user.
func (a *Assoc) deliver0(now time.Duration, fin bool, body []byte) {
	a.m.stats.Delivered++
	a.noteUsed()
	if fin {
		a.handleFin(now, body)
	} else if a.User != nil {
		a.m.up.Deliver(a, body)
	}
}

// hold keeps a packet that is out of order, and reports whether there was room. Held packets count
// as if they still were in the socket's receive buffer: those of a peer may not exceed the numbers
// that it was granted, those of all peers not the buffer. So a peer that keeps to its grant is not
// refused because of its own packets.
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

// unhold returns the room of h.
func (a *Assoc) unhold(r *receiver, h heldPacket) {
	n := numbersFor(headSize + len(h.body))
	r.units -= n
	a.m.held -= n
}

// dropHeld frees the packets that were received out of order.
func (a *Assoc) dropHeld(r *receiver) {
	for _, h := range r.held {
		a.unhold(r, h)
		a.m.free0(h.body)
	}
	r.held = nil
}
