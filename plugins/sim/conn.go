package sim

import (
	"fmt"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// A connPhase is the phase of a conn. A conn is dialing until the dial arrives at its target, and
// then either accepted or refused. An accepted conn is connected once the answer has arrived at the
// dialing side. A refused conn, or one whose endpoints have both closed, is ended.
type connPhase uint8

const (
	connDialing connPhase = iota
	connRefused
	connAccepted
	connConnected
	connEnded
)

// A conn is a connection: two endpoints and a pipe in each direction. ends[0] is the side that
// dialed. Only the holder of the turn may use a conn.
type conn struct {
	w         *World
	id        uint64
	phase     connPhase
	dialEvent event // schedules the next phase of the dial
	name      string
	target    int
	err       error // reason why the dial was refused
	window    int
	ends      [2]endpoint
	pipes     [2]pipe // pipes[i] carries the data sent by ends[i]
}

// newConn returns the dialing endpoint of a new connection from p to the context with ID target of
// the class that listens on name. The dial has not started.
func newConn(p *port, name string, target int) *endpoint {
	c := &conn{w: p.w, name: name, target: target}
	for i := range c.ends {
		en := &c.ends[i]
		en.conn, en.side = c, i
		en.in.Buffers, en.out.Buffers = &p.w.framing, &p.w.framing
		c.pipes[i].conn, c.pipes[i].side = c, i
		c.pipes[i].arrival = event{actor: &c.pipes[i]}
		c.pipes[i].roomEvent = event{actor: &c.pipes[i]}
	}
	c.dialEvent = event{actor: c}
	en := &c.ends[0]
	en.port = p
	return en
}

// startDial adds c to the world and schedules the arrival of the dial at its target. It does
// nothing if the dialing port has been released.
func (c *conn) startDial() {
	w := c.w
	en := &c.ends[0]
	if en.port.isReleased.Load() {
		return
	}
	w.conns++
	c.id = w.conns
	w.openConns = append(w.openConns, c)
	en.port.endpoints = append(en.port.endpoints, en)
	c.window = w.cfg.Window
	if c.window == 0 {
		c.window = int(logUniform(4<<10, 256<<10, w.faultRNG.pcg.Uint64()))
	}
	if w.faults.Narrow > 0 {
		c.window = max(c.window>>w.faultRNG.intn(int(w.faults.Narrow*10)+1), min(c.window, 256))
	}
	w.stats.Dials++
	w.addTrace("dial", c.name, c.id, uint64(c.target))
	took := w.drawDelay()
	if w.faultRNG.hit(w.rates.loss) {
		took += w.drawRetransmits()
	}
	w.events.schedule(&c.dialEvent, w.timeAfter(took))
}

// fire moves the dial to its next phase.
func (c *conn) fire(ev *event) {
	w, from := c.w, c.ends[0].port.instance.node
	switch c.phase {
	case connDialing:
		c.arriveAtTarget(ev, from)
	case connRefused:
		w.stats.Refusals++
		w.addTrace("refuse", c.name, c.id, 0)
		c.ends[0].failSession(c.err)
	case connAccepted:
		if c.ends[0].closed {
			return // closed while the event was held
		}
		if w.isPartitioned(c.ends[1].port.instance.node, from) {
			w.holdEvent(ev)
			return
		}
		c.phase = connConnected
		w.stats.Connects++
		w.addTrace("connect", c.name, c.id, 0)
		c.ends[0].canSend = true
		c.ends[0].sendQueued()
	}
}

// arriveAtTarget handles the arrival at its target of a dial by node from. It accepts or refuses
// the dial, and schedules the arrival of the answer.
func (c *conn) arriveAtTarget(ev *event, from *Node) {
	w := c.w
	in := w.listeners[c.name]
	switch {
	case in == nil && w.crashedNames[c.name] != nil && w.crashedNames[c.name].isSilent:
		return // a node without power does not answer
	case in != nil && w.isPartitioned(from, in.node):
		w.holdEvent(ev)
		return
	}
	p := in.openPort(c.target)
	switch {
	case w.faultRNG.hit(w.rates.refuse):
		c.err = codes.WithText(codes.ErrUnreachable, c.name+" refused the connection")
	case in == nil:
		c.err = codes.WithText(codes.ErrUnreachable, "no class listens on "+c.name)
	case p == nil:
		c.err = codes.WithText(codes.ErrUnreachable, fmt.Sprintf("%s has no open context %d", c.name, c.target))
	}
	c.phase = connRefused
	if c.err == nil {
		c.phase = connAccepted
		c.ends[1].acceptAt(p)
	}
	w.events.schedule(&c.dialEvent, w.timeAfter(w.drawDelay()))
}

// remove removes c from the world and discards its segments in flight.
func (c *conn) remove() {
	if c.phase == connEnded {
		return
	}
	w := c.w
	c.phase = connEnded
	w.events.cancel(&c.dialEvent)
	for i := range c.pipes {
		c.pipes[i].clear()
	}
	w.openConns = removeElement(w.openConns, c)
}

// resetBoth resets the connection. The segments in flight are lost, and both ends receive a reset.
func (c *conn) resetBoth() {
	for i := range c.pipes {
		c.pipes[i].clear()
		if !c.ends[1-i].closed {
			c.pipes[i].push(segment{kind: segmentReset})
		}
	}
}
