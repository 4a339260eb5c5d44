package sim

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/engine"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/stream"
)

// The life of a conn.
//
//	          somebody listens             the answer is back
//	dialing ───────────────────► accepted ───────────────────► connected ──► over, when both ends are closed
//	    └────► refused ──► over
type connPhase uint8

const (
	connDialing connPhase = iota
	connRefused
	connAccepted
	connConnected
	connOver
)

// A conn is a connection: two ends and a pipe in each direction. Ends[0] dialled. It belongs to the turn.
type conn struct {
	w      *World
	id     uint64
	phase  connPhase
	broken bool  // reset: nothing more is sent
	ev     event // of dialing
	name   string
	target int
	err    error // of a refusal
	window int
	ends   [2]end
	pipes  [2]pipe // pipes[i] leads away from ends[i]
}

// An end is what a port has of a connection.
type end struct {
	c      *conn
	side   int
	port   *port
	in     stream.In
	out    stream.Out
	cut    atomic.Bool // the engine wants nothing more of it
	up     bool        // out may send
	closed bool
}

// A pipe is one direction of a connection.
type pipe struct {
	c       *conn
	side    int
	ev      event // the first segment arrives
	room    event // the sender hears of room
	segs    []segment
	first   int
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

// newConn makes the connection that l dials. The endpoint is locked.
func newConn(p *port, l *engine.Link) *end {
	c := &conn{w: p.w, name: l.Name(), target: l.Target()}
	for i := range c.ends {
		c.ends[i].c, c.ends[i].side = c, i
		c.pipes[i].c, c.pipes[i].side = c, i
		c.pipes[i].ev = event{act: &c.pipes[i]}
		c.pipes[i].room = event{act: &c.pipes[i]}
	}
	c.ev = event{act: c}
	en := &c.ends[0]
	en.port = p
	en.in.Link, en.out.Link = l, l
	return en
}

// begin sends the dial on its way.
func (c *conn) begin() {
	w := c.w
	en := &c.ends[0]
	if en.port.gone.Load() {
		return
	}
	w.conns++
	c.id = w.conns
	w.open = append(w.open, c)
	en.port.ends = append(en.port.ends, en)
	c.window = w.cfg.Window
	if c.window == 0 {
		c.window = int(logUniform(4<<10, 256<<10, w.chance.pcg.Uint64()))
	}
	if w.faults.Narrow > 0 {
		c.window = max(c.window>>w.chance.below(int(w.faults.Narrow*10)+1), min(c.window, 256))
	}
	w.stats.Dials++
	w.trace(traceDial, c.name, c.id, uint64(c.target))
	w.events.set(&c.ev, w.after(w.delay()))
}

// fire is the progress of dialing.
func (c *conn) fire(ev *event) {
	w, from := c.w, c.ends[0].port.inst.node
	switch c.phase {
	case connDialing:
		c.arrive(ev, from)
	case connRefused:
		w.stats.Refusals++
		w.trace(traceRefuse, c.name, c.id, 0)
		c.ends[0].hangup(c.err)
	case connAccepted:
		if w.blocked(c.ends[1].port.inst.node, from) {
			w.hold(ev)
			return
		}
		c.phase = connConnected
		w.stats.Connects++
		w.trace(traceConnect, c.name, c.id, 0)
		c.ends[0].up = true
		c.ends[0].pump()
	}
}

// arrive is the dial at the place that it names.
func (c *conn) arrive(ev *event, from *Node) {
	w := c.w
	in := w.named[c.name]
	switch {
	case in == nil && w.lost[c.name] != nil && w.lost[c.name].dark:
		return // nobody answers
	case in != nil && w.blocked(from, in.node):
		w.hold(ev)
		return
	}
	p := in.port(c.target)
	switch {
	case w.chance.chance(w.odds.refuse):
		c.err = na.WithText(na.ErrUnreachable, c.name+" refused the connection")
	case in == nil:
		c.err = na.WithText(na.ErrUnreachable, "nobody listens on "+c.name)
	case p == nil:
		c.err = na.WithText(na.ErrUnreachable, fmt.Sprintf("%s has no open context %d", c.name, c.target))
	}
	c.phase = connRefused
	if c.err == nil {
		c.phase = connAccepted
		c.ends[1].accept(p)
	}
	w.events.set(&c.ev, w.after(w.delay()))
}

// accept gives the far end to a port.
func (en *end) accept(p *port) {
	en.port, en.up = p, true
	p.ends = append(p.ends, en)
	dialler := en.c.ends[0].port.inst.name
	en.in.Admit = func(g frame.Greeting) (*engine.Link, error) {
		l, err := p.e.Admit(en, g, g.Listen == dialler)
		if err == nil {
			en.out.Link = l
		}
		return l, err
	}
}

func (en *end) other() *end     { return &en.c.ends[1-en.side] }
func (en *end) outgoing() *pipe { return &en.c.pipes[en.side] }
func (en *end) incoming() *pipe { return &en.c.pipes[1-en.side] }

// pump sends what the link has, as far as the window goes.
func (en *end) pump() {
	if !en.up || en.closed || en.c.broken || en.out.Link == nil {
		return
	}
	w, p, e := en.c.w, en.outgoing(), en.port.e
	for {
		room := en.c.window - p.bytes
		if room <= 0 {
			if !p.full {
				p.full = true
				w.stats.Full++
			}
			return
		}
		if en.cut.Load() {
			return
		}
		e.Lock()
		more := en.out.Fill()
		e.Unlock()
		if !more {
			return
		}
		en.write(room)
	}
}

// write puts bytes of out onto the wire. They are copied here: nobody looks at the program's memory afterwards.
func (en *end) write(room int) {
	w := en.c.w
	covered := en.out.Front()
	w.iov = en.out.Gather(w.iov[:0])
	n := 0
	for _, s := range w.iov {
		n += len(s)
	}
	if all := n; w.cfg.Level == LevelB {
		if n = w.cut(min(n, room)); n < all {
			w.stats.Cuts++
		}
	}
	b := w.buffer(n)
	at := 0
	for i, s := range w.iov {
		at += copy(b[at:], s)
		w.iov[i] = nil
	}
	en.out.Wrote(n)
	en.outgoing().push(segment{kind: segmentData, b: b, covered: min(covered, n)})
}

// cut draws how many of n bytes go out together.
func (w *World) cut(n int) int {
	if n <= 1 {
		return n
	}
	u := w.chance.pcg.Uint64()
	switch u & 7 {
	case 0:
		return 1
	case 1, 2, 3:
		return n
	}
	return int(logUniform(1, time.Duration(n), u>>3))
}

// push puts a segment at the end of the pipe.
func (p *pipe) push(s segment) {
	w := p.c.w
	now := w.Now()
	if bw := w.cfg.Bandwidth; bw > 0 {
		p.sending = max(p.sending, now) + time.Duration(int64(len(s.b))*int64(time.Second)/bw)
		now = p.sending
	}
	s.at = now + w.delay() // and not before those ahead of it
	p.segs = append(p.segs, s)
	p.bytes += len(s.b)
	if len(p.segs)-p.first == 1 {
		w.events.set(&p.ev, s.at)
	}
}

// pop takes the first segment.
func (p *pipe) pop() segment {
	s := p.segs[p.first]
	p.segs[p.first] = segment{}
	if p.first++; p.first == len(p.segs) {
		p.segs, p.first = p.segs[:0], 0
	} else {
		if p.first >= 32 && p.first*2 > len(p.segs) {
			n := copy(p.segs, p.segs[p.first:])
			clear(p.segs[n:])
			p.segs, p.first = p.segs[:n], 0
		}
		p.c.w.events.set(&p.ev, max(p.segs[p.first].at, p.c.w.Now()))
	}
	return s
}

// clear drops everything that is under way.
func (p *pipe) clear() {
	w := p.c.w
	w.events.unset(&p.ev)
	w.events.unset(&p.room)
	for i := p.first; i < len(p.segs); i++ {
		w.recycle(p.segs[i].b)
		p.segs[i] = segment{}
	}
	p.segs, p.first, p.bytes, p.due, p.ev.slow = p.segs[:0], 0, 0, false, false
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
	if p.first == len(p.segs) {
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

// serve delivers what waited for somebody to drive.
func (en *end) serve() {
	if p := en.incoming(); p.due {
		p.due = false
		en.c.w.events.set(&p.ev, en.c.w.Now())
	}
}

// deliver hands the first segment to the end that it leads to, unless a fault is drawn.
func (p *pipe) deliver(from, to *end) {
	w := p.c.w
	if p.segs[p.first].kind == segmentData && !to.closed && w.odds.partition > 0 && w.strike(p, from, to) {
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
		w.trace(traceDrop, to.port.inst.name, p.c.id, uint64(len(s.b)))
		if in := to.port.inst; in.dead && !in.node.dark && s.kind == segmentData {
			p.c.pipes[to.side].push(segment{kind: segmentReset}) // whoever lives there now knows nothing of it
		}
	case s.kind == segmentClose:
		w.trace(traceClose, to.port.inst.name, p.c.id, 0)
		to.hangup(na.WithText(na.ErrPeerLost, "the peer closed the connection"))
	case s.kind == segmentReset:
		w.trace(traceReset, to.port.inst.name, p.c.id, 0)
		to.hangup(na.WithText(na.ErrPeerLost, "the connection was reset"))
	default:
		w.trace(traceSegment, to.port.inst.name, p.c.id<<1|uint64(p.side), sum(s.b))
		to.feed(s.b)
	}
	w.recycle(s.b)
}

// feed hands bytes to the engine.
func (en *end) feed(b []byte) {
	w, e := en.c.w, en.port.e
	for len(b) > 0 && !en.cut.Load() && !en.closed {
		w.iov = en.in.Scatter(w.iov[:0])
		n := 0
		for i, to := range w.iov {
			n += copy(to, b[n:])
			w.iov[i] = nil
		}
		en.in.Got(n)
		b = b[n:]
		e.Lock()
		var err error
		if !en.cut.Load() {
			if err = en.in.Parse(); err != nil && en.in.Link != nil {
				en.in.Link.Fail(err)
			}
		}
		e.Unlock()
		e.Flush()
		if err != nil && en.in.Link == nil {
			en.cut.Store(true)
			en.close(engine.Goaway(err))
		}
	}
	en.in.Idle()
}

// hangup ends the session of an end because of err.
func (en *end) hangup(err error) {
	if en.closed {
		return
	}
	e := en.port.e
	e.Lock()
	if !en.cut.Load() && en.in.Link != nil {
		en.in.Link.Fail(err) // it cuts this end
	}
	e.Unlock()
	e.Flush()
	if en.in.Link == nil {
		en.close(nil)
	}
}

// close ends the connection at this side, after last if that can still be sent.
func (en *end) close(last []byte) {
	if en.closed {
		return
	}
	c := en.c
	en.closed = true
	en.port.drop(en)
	if c.phase == connDialing || c.phase == connRefused {
		c.end()
		return
	}
	c.w.events.unset(&c.ev)
	out := en.outgoing()
	if last != nil && en.up && !c.broken && en.out.Last(last) {
		b := c.w.buffer(len(last))
		copy(b, last)
		en.out.Wrote(len(last))
		out.push(segment{kind: segmentData, b: b, covered: len(b)})
	}
	en.up = false
	if en.other().closed {
		c.end()
		return
	}
	out.push(segment{kind: segmentClose})
}

// end forgets the connection.
func (c *conn) end() {
	if c.phase == connOver {
		return
	}
	w := c.w
	c.phase = connOver
	w.events.unset(&c.ev)
	for i := range c.pipes {
		c.pipes[i].clear()
	}
	for i, o := range w.open {
		if o == c {
			w.open = append(w.open[:i], w.open[i+1:]...)
			break
		}
	}
}

// reset breaks the connection: what is under way is lost, both ends hear of it.
func (c *conn) reset() {
	c.broken = true
	for i := range c.pipes {
		c.pipes[i].clear()
		if !c.ends[1-i].closed {
			c.pipes[i].push(segment{kind: segmentReset})
		}
	}
}

// drop forgets an end.
func (p *port) drop(en *end) {
	for i, o := range p.ends {
		if o == en {
			p.ends = append(p.ends[:i], p.ends[i+1:]...)
			return
		}
	}
}

// The buffers of segments come in classes, each four times as large as the one before.
const (
	bufClasses = 7
	bufFirst   = 256
	bufKept    = 1 << 20 // bytes of one class
)

// buffer returns n bytes.
func (w *World) buffer(n int) []byte {
	size := bufFirst
	for i := range w.bufs {
		if n <= size {
			if free := w.bufs[i]; len(free) > 0 {
				b := free[len(free)-1]
				w.bufs[i] = free[:len(free)-1]
				return b[:n]
			}
			return make([]byte, n, size)
		}
		size *= 4
	}
	return make([]byte, n)
}

// recycle takes a buffer back.
func (w *World) recycle(b []byte) {
	size := bufFirst
	for i := range w.bufs {
		if cap(b) == size {
			if (len(w.bufs[i])+1)*size <= max(bufKept, size) {
				w.bufs[i] = append(w.bufs[i], b)
			}
			return
		}
		size *= 4
	}
}
