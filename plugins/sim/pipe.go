package sim

import (
	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"time"
)

// A pipe is one direction of a connection.
type pipe struct {
	c       *conn
	side    int
	ev      event // the first segment arrives
	room    event // signaled when there is room
	segs    []segment
	bytes   int           // in segs
	sending time.Duration // until when the sender's link is busy
	clogged time.Duration // until when nothing passes
	due     bool          // the first segment waits for the receiver
	full    bool          // the sender waits for room
}

// A segment is what arrives at one time.
type segment struct {
	kind    segmentKind
	at      time.Duration // not before
	b       []byte
	covered int // of these, how many at the front a checksum covers
}

type segmentKind uint8

const (
	segmentData segmentKind = iota
	segmentClose
	segmentReset
)

// push puts a segment at the end of the pipe.
func (p *pipe) push(s segment) {
	w := p.c.w
	now := w.Now()
	var takes, late, again time.Duration
	if bw := w.cfg.Bandwidth; bw > 0 {
		takes = time.Duration(int64(len(s.b)) * int64(time.Second) / bw)
	}
	if w.rates.reorder > 0 {
		late, again = w.sendFault(p, takes)
	}
	if takes > 0 {
		p.sending = max(p.sending, now) + takes
		now = p.sending
		p.sending += again
	}
	s.at = now + w.delay() + late // and not before those ahead of it
	p.segs = append(p.segs, s)
	p.bytes += len(s.b)
	if len(p.segs) == 1 {
		w.events.set(&p.ev, s.at)
	}
}

// pop takes the first segment.
func (p *pipe) pop() segment {
	s := p.segs[0]
	p.segs[0] = segment{}
	if p.segs = p.segs[1:]; len(p.segs) > 0 {
		p.c.w.events.set(&p.ev, max(p.segs[0].at, p.c.w.Now()))
	}
	return s
}

// clear drops everything that is under way.
func (p *pipe) clear() {
	w := p.c.w
	w.events.unset(&p.ev)
	w.events.unset(&p.room)
	for _, s := range p.segs {
		w.recycle(s.b)
	}
	p.segs, p.bytes, p.due, p.ev.slow = nil, 0, false, false
}

// fire is the arrival of the first segment, or of the news that there is room.
func (p *pipe) fire(ev *event) {
	c := p.c
	w := c.w
	from, to := &c.ends[p.side], &c.ends[1-p.side]
	if ev == &p.room {
		if w.blocked(to.port.inst.node, from.port.inst.node) {
			w.hold(ev)
			return
		}
		from.pump()
		return
	}
	if len(p.segs) == 0 {
		return
	}
	switch {
	case w.blocked(from.port.inst.node, to.port.inst.node):
		w.hold(ev)
	case p.clogged > w.Now():
		ev.slow = true
		w.events.set(ev, p.clogged)
	case !to.closed && to.port.idle():
		p.due = true
	default:
		ev.slow = false
		p.deliver(from, to)
	}
}

// deliver hands the first segment to the end that it leads to, unless a fault is drawn.
func (p *pipe) deliver(from, to *end) {
	w := p.c.w
	if p.segs[0].kind == segmentData && !to.closed && w.rates.partition > 0 && w.drawFault(p, from, to) {
		return
	}
	s := p.pop()
	p.bytes -= len(s.b)
	if p.full && p.bytes <= p.c.window/2 && !from.closed {
		p.full = false
		w.events.set(&p.room, w.after(w.delay()))
	}
	w.stats.Segments++
	w.stats.Bytes += uint64(len(s.b))
	switch {
	case to.closed:
		w.stats.Dropped++
		w.trace("drop", to.port.inst.name, p.c.id, uint64(len(s.b)))
		if in := to.port.inst; in.dead && !in.node.dark && s.kind == segmentData {
			p.c.pipes[to.side].push(segment{kind: segmentReset}) // whoever lives there now knows nothing of it
		}
	case s.kind == segmentClose:
		w.trace("close", to.port.inst.name, p.c.id, 0)
		to.hangup(codes.WithText(codes.ErrPeerLost, "the peer closed the connection"))
	case s.kind == segmentReset:
		w.trace("reset", to.port.inst.name, p.c.id, 0)
		to.hangup(codes.WithText(codes.ErrPeerLost, "the connection was reset"))
	default:
		w.trace("segment", to.port.inst.name, p.c.id<<1|uint64(p.side), sum(s.b))
		to.feed(s.b)
	}
	w.recycle(s.b)
}
