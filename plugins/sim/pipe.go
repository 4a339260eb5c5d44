package sim

import (
	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"time"
)

// A pipe is one direction of a connection.
type pipe struct {
	conn             *conn
	side             int
	arrival          event // arrival of the first segment
	roomEvent        event // scheduled when the window has room again
	segments         []segment
	bytes            int           // total size of the data in segments
	linkBusyUntil    time.Duration // time until which the sender's link is busy
	clogged          time.Duration // time until which nothing is delivered
	waitsForReceiver bool          // the first segment has arrived and is waiting for the receiver
	senderWaits      bool          // the sender is waiting for room in the window
}

// A segment is a part of a stream that arrives at one time, or the end of a connection.
type segment struct {
	kind    segmentKind
	at      time.Duration // earliest arrival time
	data    []byte
	covered int // number of bytes at the beginning of data that are covered by a checksum
}

type segmentKind uint8

const (
	segmentData segmentKind = iota
	segmentClose
	segmentReset
)

// push appends a segment to the pipe and draws the faults and the delay with which it arrives.
func (p *pipe) push(s segment) {
	w := p.conn.w
	now := w.Now()
	var takes, late, again time.Duration
	if bw := w.cfg.Bandwidth; bw > 0 {
		takes = time.Duration(int64(len(s.data)) * int64(time.Second) / bw)
	}
	if w.rates.reorder > 0 {
		late, again = w.sendFault(p, takes)
	}
	if takes > 0 {
		p.linkBusyUntil = max(p.linkBusyUntil, now) + takes
		now = p.linkBusyUntil
		p.linkBusyUntil += again
	}
	s.at = now + w.drawDelay() + late // but not before the segments ahead of it
	p.segments = append(p.segments, s)
	p.bytes += len(s.data)
	if len(p.segments) == 1 {
		w.events.schedule(&p.arrival, s.at)
	}
}

// pop removes and returns the first segment.
func (p *pipe) pop() segment {
	s := p.segments[0]
	p.segments[0] = segment{}
	if p.segments = p.segments[1:]; len(p.segments) > 0 {
		p.conn.w.events.schedule(&p.arrival, max(p.segments[0].at, p.conn.w.Now()))
	}
	return s
}

// clear discards all segments in flight.
func (p *pipe) clear() {
	w := p.conn.w
	w.events.cancel(&p.arrival)
	w.events.cancel(&p.roomEvent)
	for _, s := range p.segments {
		w.freeBuffer(s.data)
	}
	p.segments, p.bytes, p.waitsForReceiver, p.arrival.isTimer = nil, 0, false, false
}

// fire handles the arrival of the first segment or of a window update.
func (p *pipe) fire(ev *event) {
	c := p.conn
	w := c.w
	from, to := &c.ends[p.side], &c.ends[1-p.side]
	if ev == &p.roomEvent {
		if w.isPartitioned(to.port.instance.node, from.port.instance.node) {
			w.holdEvent(ev)
			return
		}
		from.sendQueued()
		return
	}
	if len(p.segments) == 0 {
		return
	}
	switch {
	case w.isPartitioned(from.port.instance.node, to.port.instance.node):
		w.holdEvent(ev)
	case p.clogged > w.Now():
		ev.isTimer = true
		w.events.schedule(ev, p.clogged)
	case !to.closed && to.port.isUnserved():
		p.waitsForReceiver = true
	default:
		ev.isTimer = false
		p.deliver(from, to)
	}
}

// deliver delivers the first segment to endpoint to, unless drawFault prevents it.
func (p *pipe) deliver(from, to *endpoint) {
	w := p.conn.w
	if p.segments[0].kind == segmentData && !to.closed && w.rates.partition > 0 && w.drawFault(p, from, to) {
		return
	}
	s := p.pop()
	p.bytes -= len(s.data)
	if p.senderWaits && p.bytes <= p.conn.window/2 && !from.closed {
		p.senderWaits = false
		w.events.schedule(&p.roomEvent, w.timeAfter(w.drawDelay()))
	}
	w.stats.Segments++
	w.stats.Bytes += uint64(len(s.data))
	switch {
	case to.closed:
		w.stats.Dropped++
		w.addTrace("drop", to.port.instance.name, p.conn.id, uint64(len(s.data)))
		if in := to.port.instance; in.dead && !in.node.isSilent && s.kind == segmentData {
			// The endpoint is closed. A node that was restarted does not have this connection.
			p.conn.pipes[to.side].push(segment{kind: segmentReset})
		}
	case s.kind == segmentClose:
		w.addTrace("close", to.port.instance.name, p.conn.id, 0)
		to.failSession(codes.WithText(codes.ErrPeerLost, "connection closed by peer"))
	case s.kind == segmentReset:
		w.addTrace("reset", to.port.instance.name, p.conn.id, 0)
		to.failSession(codes.WithText(codes.ErrPeerLost, "connection reset by peer"))
	default:
		w.addTrace("segment", to.port.instance.name, p.conn.id<<1|uint64(p.side), checksum(s.data))
		to.receive(s.data)
	}
	w.freeBuffer(s.data)
}
