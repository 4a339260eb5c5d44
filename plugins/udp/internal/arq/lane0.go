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
	m, f := a.m, a.fly()
	m.wake(a)
	// Frames are copied, and kept until they are acknowledged: all peers together are bounded. Pieces are borrowed, and cost nothing.
	full := m.stats.Retained >= m.cfg.MaxRetained
	if !full && a.freePackets(0) > 0 {
		frame = MaxFrame
	}
	piece = max(0, a.freePackets(1)) * (a.size() - headSize - bulkSize)
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
	f, most := a.fly(), a.largest0()-headSize
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
	if f.open == nil {
		return
	}
	*f.send[0].push(&a.lane[0]) = packet{body: f.open, messages: f.openCount} // it does not change any more: it may have to be sent again
	f.open, f.openCount = nil, 0
}

// Barrier says that the pieces which follow mean nothing to the peer before the frame that was given last. The lanes are not ordered
// otherwise: a receiver drops a packet of lane 1 that is ahead of its barrier, as if it had been lost.
func (a *Assoc) Barrier() {
	f := a.fly()
	a.m.wake(a)
	f.barrier, f.barred = a.lane[0].nxt, true
	if f.open == nil {
		f.barrier--
	}
}

// window is how many packets of lane i may be under way. When packets are lost, going back n repeats all that were sent after them:
// so those of lane 0 are made few, and full. With packets lost at random the window stands where one packet repeats about one other.
func (a *Assoc) window(i int) int {
	if i == 0 && a.window0 > 0 {
		return int(a.window0)
	}
	return a.m.cfg.Window
}

const leastWindow0 = 2

// through reports whether everything is under way on lane i that was sent before and may be.
func (a *Assoc) through(i int) bool {
	s := &a.flight.send[i]
	return s.snd == s.high || int(s.snd-a.lane[i].una) >= a.window(i)
}

// shrink0 is called when packets of lane 0 were lost.
func (a *Assoc) shrink0() {
	if a.m.cfg.Profile == Modern {
		under := int(a.flight.send[0].high - a.lane[0].una) // half of what was under way, not of a window that was never full
		a.window0, a.grown = uint16(max(leastWindow0, min(under, a.window(0))/2)), 0
	}
}

// widen0 adds one packet for each window that was acknowledged, as congestion avoidance does (RFC 5681 3.1); at Config.Window there is no
// limit again.
func (a *Assoc) widen0(n int) {
	if a.window0 == 0 {
		return
	}
	if a.grown += uint16(n); a.grown >= a.window0 {
		a.grown = 0
		if a.window0++; int(a.window0) >= a.m.cfg.Window {
			a.window0 = 0
		}
	}
}

// goBack sends everything that is under way on lane i once more, from the left edge: go-back-n, as in U-Net (von Eicken and others, 1995).
// The receiver has dropped what came behind the gap. Until recover is acknowledged, reports of gaps are about what was sent before.
func (a *Assoc) goBack(i int) {
	s, l := &a.flight.send[i], &a.lane[i]
	a.m.stats.GoneBack++
	if i == 0 {
		a.shrink0()
	}
	for seq := l.una; seq != s.high; seq++ {
		a.unfly(s.at(seq), true)
	}
	s.snd, s.recover = l.una, s.high
}

// unfly takes one packet off the bytes under way.
func (a *Assoc) unfly(p *packet, lost bool) {
	a.flight.flying -= int(p.size)
	if p.piece == nil && p.size > 0 {
		a.flight.send[0].cost -= cost(int(p.size))
	}
	if lost {
		a.flight.cc.lost += int(p.size)
	}
	p.size = 0
}

// gap handles the peer's word that packets are missing, on a lane that goes back n.
func (a *Assoc) gap(now time.Duration, i int, p *Packet) {
	s, l := &a.flight.send[i], &a.lane[i]
	if p.ack != l.una || l.una == s.high || !before(l.una, p.seq) || !before(p.seq, s.high) {
		return // late, or about what was never sent
	}
	edge := s.at(l.una)
	// The packet that made the peer report was sent after the last repetition of the left edge: that is lost, too.
	again := p.flags&flagEcho != 0 && before(clock(edge.sent+a.reordering()), p.echo)
	switch {
	case before(l.una, s.recover) && !again: // a repeated report of the same loss
	case !a.through(i): // going back already
	case int(p.seq-l.una) >= a.m.cfg.DupAcks:
		a.goBack(i)
	default: // few have come behind it: it may only have been overtaken
		a.soon(now, s, edge)
	}
}

// soon makes the timer look soon at packet p, which is missing or late.
func (a *Assoc) soon(now time.Duration, s *sender, p *packet) {
	if at := max(now, p.sent+a.rtt()+a.reordering()); at < s.due && !s.early {
		s.due, s.early = at, true
	}
}

// take0 takes a packet of lane 0: in order or not at all.
func (a *Assoc) take0(now time.Duration, p *Packet) {
	m, r, l := a.m, &a.flight.recv[0], &a.lane[0]
	switch {
	case before(p.seq, l.rcv): // the peer has not seen the acknowledgment, or would not send it again
		m.stats.Duplicates++
		r.now, r.dup = true, true
	case p.seq != l.rcv:
		m.stats.OutOfOrder++
		if !r.gap || before(r.high, p.seq) {
			r.high = p.seq
		}
		r.now, r.gap = true, true
	default:
		m.stats.Delivered++
		a.used()
		a.owe(now, 0, p)
		if p.flags&flagFin != 0 {
			a.finHeard(now, p.body)
		} else if a.User != nil {
			m.up.Deliver(a, p.body)
		}
	}
}
