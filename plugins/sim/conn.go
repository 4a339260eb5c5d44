package sim

import (
	"fmt"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
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
	ev     event // of dialing
	name   string
	target int
	err    error // of a refusal
	window int
	ends   [2]end
	pipes  [2]pipe // pipes[i] leads away from ends[i]
}

// newConn makes the connection of a dial.
func newConn(p *port, name string, target int) *end {
	c := &conn{w: p.w, name: name, target: target}
	for i := range c.ends {
		en := &c.ends[i]
		en.c, en.side = c, i
		en.in.Buffers, en.out.Buffers = &p.w.framing, &p.w.framing
		c.pipes[i].c, c.pipes[i].side = c, i
		c.pipes[i].ev = event{act: &c.pipes[i]}
		c.pipes[i].room = event{act: &c.pipes[i]}
	}
	c.ev = event{act: c}
	en := &c.ends[0]
	en.port = p
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
	w.trace("dial", c.name, c.id, uint64(c.target))
	took := w.delay()
	if w.chance.chance(w.rates.loss) {
		took += w.retransmits()
	}
	w.events.set(&c.ev, w.after(took))
}

// fire is the progress of dialing.
func (c *conn) fire(ev *event) {
	w, from := c.w, c.ends[0].port.inst.node
	switch c.phase {
	case connDialing:
		c.arrive(ev, from)
	case connRefused:
		w.stats.Refusals++
		w.trace("refuse", c.name, c.id, 0)
		c.ends[0].hangup(c.err)
	case connAccepted:
		if c.ends[0].closed {
			return // meanwhile: it was held
		}
		if w.blocked(c.ends[1].port.inst.node, from) {
			w.hold(ev)
			return
		}
		c.phase = connConnected
		w.stats.Connects++
		w.trace("connect", c.name, c.id, 0)
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
	case w.chance.chance(w.rates.refuse):
		c.err = codes.WithText(codes.ErrUnreachable, c.name+" refused the connection")
	case in == nil:
		c.err = codes.WithText(codes.ErrUnreachable, "nobody listens on "+c.name)
	case p == nil:
		c.err = codes.WithText(codes.ErrUnreachable, fmt.Sprintf("%s has no open context %d", c.name, c.target))
	}
	c.phase = connRefused
	if c.err == nil {
		c.phase = connAccepted
		c.ends[1].accept(p)
	}
	w.events.set(&c.ev, w.after(w.delay()))
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
	w.open = without(w.open, c)
}

// reset breaks the connection: what is under way is lost, and both ends are told.
func (c *conn) reset() {
	for i := range c.pipes {
		c.pipes[i].clear()
		if !c.ends[1-i].closed {
			c.pipes[i].push(segment{kind: segmentReset})
		}
	}
}
