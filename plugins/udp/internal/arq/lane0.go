package arq

import "time"

// MaxFrame is the largest frame in bytes. One that is larger than a packet goes in several, in order, and begins one.
const MaxFrame = 72 << 10

// Room returns the largest frame that Frame takes now in bytes, or -1, and how many bytes Piece takes, or 0. If one of them
// has no room, Upper.Room is called when there is some.
func (a *Assoc) Room(now time.Duration) (frame, piece int) {
	frame = -1
	if !a.Up() {
		return frame, 0
	}
	a.giveBack(now)
	m, f := a.m, a.takeFlight()
	m.wake(a)
	// Frames are copied, and kept until they are acknowledged: all peers together are bounded. Pieces are borrowed, and cost nothing.
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

// freePackets is how many packets lane i takes: those that wait to be sent are at most a train.
func (a *Assoc) freePackets(i int) int {
	l, f := &a.lane[i], a.flight
	given := l.nxt
	if i == 0 && f.open != nil {
		given++
	}
	return min(a.m.cfg.Window-int(given-l.una), train-int(given-f.send[i].high))
}

// roomAgain tells the user that there is room, if that is so and he was told that there is none.
func (a *Assoc) roomAgain() bool {
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
	if a.freePackets(0) <= 0 || a.freePackets(1) <= 0 { // both: the user asks for both, and would come back for nothing
		return false
	}
	f.blocked = false
	a.m.up.Room(a)
	return true
}

// Frame copies a frame, front and payload, into the packets of lane 0. front is not divided. Only as Room allows. A message is
// counted until it is acknowledged: End.Messages.
func (a *Assoc) Frame(front, payload []byte, message bool) {
	f, most := a.takeFlight(), a.largest0()-headSize
	a.m.wake(a)
	if f.open != nil && len(f.open)+len(front)+len(payload) > most {
		a.close0() // a frame that fits a packet is not divided: the loss of one packet delays one frame less
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

// grow0 makes room for n bytes in the packet that frames are added to.
func (a *Assoc) grow0(n int) {
	f := a.flight
	if old := f.open; cap(old)-len(old) < n {
		f.open = append(a.m.alloc0(len(old)+n), old...)
		a.m.free0(old)
	}
}

// close0 gives the packet that frames are added to its number.
func (a *Assoc) close0() {
	f := a.flight
	*f.send[0].push(&a.lane[0]) = packet{body: f.open, messages: f.openCount} // it does not change any more: it may have to be sent again
	f.open, f.openCount = nil, 0
}

// Barrier says that the pieces which follow mean nothing to the peer before the frame that was given last. The lanes are not ordered
// otherwise: a receiver drops a packet of lane 1 that is ahead of its barrier, as if it had been lost.
func (a *Assoc) Barrier() {
	f := a.takeFlight()
	a.m.wake(a)
	f.barrier, f.barred = a.lane[0].nxt, true
	if f.open == nil {
		f.barrier--
	}
}

// unfly takes one packet off the bytes under way.
func (a *Assoc) unfly(p *packet, lost bool) {
	a.flight.flying -= int(p.size)
	if lost {
		a.flight.cc.lost += int(p.size)
		a.flight.send[0].cost -= int(p.units)
		p.units = 0
	}
	p.size = 0
}

// A heldPacket is a packet of lane 0 that is kept until those before it have come.
type heldPacket struct {
	body []byte
	fin  bool
}

// take0 takes a packet of lane 0. One that comes out of order is kept, and acknowledged selectively, while there is room; it is delivered
// when those before it have come. Seed keeps none.
func (a *Assoc) take0(now time.Duration, p *Packet) {
	m, r, l := a.m, &a.flight.recv[0], &a.lane[0]
	ahead := p.seq - l.rcv
	switch {
	case before(p.seq, l.rcv) || r.hasPacket(ahead): // the peer has not seen the acknowledgment, or would not send it again
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
	for ; n > 1 && a.state != dead; n-- { // else drop has freed what was held
		h := r.held[l.rcv]
		delete(r.held, l.rcv)
		a.unhold(r, h)
		a.deliver0(now, h.fin, h.body)
		m.free0(h.body)
	}
}

// deliver0 gives the user the next packet of lane 0.
func (a *Assoc) deliver0(now time.Duration, fin bool, body []byte) {
	a.m.stats.Delivered++
	a.noteUsed()
	if fin {
		a.finHeard(now, body)
	} else if a.User != nil {
		a.m.up.Deliver(a, body)
	}
}

// hold keeps a packet that has come out of order, or reports that there is no room. It takes the place that it had in the socket's receive
// buffer: no more than the peer was promised, and all peers together no more than the buffer. A peer that keeps its promise is never
// refused for its own.
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

// unhold gives back the room of h.
func (a *Assoc) unhold(r *receiver, h heldPacket) {
	n := numbersFor(headSize + len(h.body))
	r.units -= n
	a.m.held -= n
}

// dropHeld forgets what has come out of order.
func (a *Assoc) dropHeld(r *receiver) {
	for _, h := range r.held {
		a.unhold(r, h)
		a.m.free0(h.body)
	}
	r.held = nil
}
