package sim

import (
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/framing"
	"github.com/quicksilver-rpc/quicksilver/internal/memfault"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// An endpoint is one side of a connection. It belongs to a port.
type endpoint struct {
	conn     *conn
	side     int
	port     *port
	in       framing.In
	out      framing.Out
	detached atomic.Bool // package na no longer uses the endpoint
	canSend  bool        // whether out may send
	closed   bool
}

// acceptAt attaches the accepting endpoint to port p.
func (en *endpoint) acceptAt(p *port) {
	en.port, en.canSend = p, true
	p.endpoints = append(p.endpoints, en)
	dialler := en.conn.ends[0].port.instance.name
	en.in.Greet = func(g *frame.Greeting) error {
		l, err := p.core.Admit(p, en, g, g.Listen == dialler)
		en.in.Session, en.out.Session = l, l
		return err
	}
}

// Remote implements carrier.Locator.
func (en *endpoint) Remote() string { return en.peer().port.instance.node.name }

var _ carrier.Locator = (*endpoint)(nil)

func (en *endpoint) peer() *endpoint { return &en.conn.ends[1-en.side] }
func (en *endpoint) outPipe() *pipe  { return &en.conn.pipes[en.side] }
func (en *endpoint) inPipe() *pipe   { return &en.conn.pipes[1-en.side] }

// sendQueued sends the session's queued frames until the window is full.
func (en *endpoint) sendQueued() {
	if !en.canSend || en.closed || en.out.Session == nil {
		return
	}
	w, p, e := en.conn.w, en.outPipe(), en.port.core
	for {
		room := en.conn.window - p.bytes
		if room <= 0 {
			if !p.senderWaits {
				p.senderWaits = true
				w.stats.Full++
			}
			return
		}
		if en.detached.Load() {
			return
		}
		e.Lock()
		more := en.out.Fill()
		e.Pause()
		if !more {
			return
		}
		en.sendSegment(room)
	}
}

// sendSegment sends up to room bytes from out as one segment. It copies the bytes, so the program's
// memory is not read after sendSegment returns.
func (en *endpoint) sendSegment(room int) {
	w := en.conn.w
	covered := en.out.Front()
	w.iov = en.out.Gather(w.iov[:0])
	n := 0
	for _, s := range w.iov {
		n += len(s)
	}
	if all := n; w.cfg.Level == LevelB {
		if n = w.drawCut(min(n, room)); n < all {
			w.stats.Cuts++
		}
	}
	b := w.allocBuffer(n)
	defer clear(w.iov)
	if _, ok := memfault.Gather(b, w.iov); !ok {
		en.out.Fault()
		w.freeBuffer(b)
		return // the next iteration of sendQueued sends zeros
	}
	en.out.Wrote(n)
	en.outPipe().push(segment{kind: segmentData, data: b, covered: min(covered, n)})
}

// drawCut returns how many of the next n bytes to send in one segment. The result is at least 1, if
// n is, and at most n.
func (w *World) drawCut(n int) int {
	if n <= 1 {
		return n
	}
	u := w.faultRNG.pcg.Uint64()
	switch u & 7 {
	case 0:
		return 1
	case 1, 2, 3:
		return n
	}
	return int(logUniform(1, time.Duration(n), u>>3))
}

// receive passes the bytes in b to the parser.
func (en *endpoint) receive(b []byte) {
	w, e := en.conn.w, en.port.core
	for len(b) > 0 && !en.detached.Load() && !en.closed {
		w.iov = en.in.Scatter(w.iov[:0])
		n, ok := memfault.Scatter(w.iov, b)
		if clear(w.iov); !ok {
			en.in.Fault()
			continue
		}
		en.in.Got(n)
		b = b[n:]
		e.Lock()
		var err error
		if !en.detached.Load() {
			if err = en.in.Parse(); err != nil && en.in.Session != nil {
				en.in.Session.Fail(err)
			}
		}
		e.Unlock()
		if err != nil && en.in.Session == nil {
			en.detached.Store(true)
			en.closeWith(frame.ByeOf(err).Frame())
		}
	}
	en.in.Idle()
}

// deliverWaiting schedules the delivery of a segment that has arrived but was waiting for a
// goroutine to drive the context.
func (en *endpoint) deliverWaiting() {
	if p := en.inPipe(); p.waitsForReceiver {
		p.waitsForReceiver = false
		en.conn.w.events.schedule(&p.arrival, en.conn.w.Now())
	}
}

// failSession fails the endpoint's session with err, unless the endpoint is closed or detached. It
// takes the context's lock.
func (en *endpoint) failSession(err error) {
	if en.closed {
		return
	}
	e := en.port.core
	e.Lock()
	if !en.detached.Load() && en.in.Session != nil {
		en.in.Session.Fail(err) // cuts this endpoint
	}
	e.Unlock()
	if en.in.Session == nil {
		en.closeWith(nil)
	}
}

// closeWith closes the connection on this side, after sending last if that is still possible.
func (en *endpoint) closeWith(last []byte) {
	if en.closed {
		return
	}
	c := en.conn
	en.closed = true
	en.port.endpoints = removeElement(en.port.endpoints, en)
	if c.phase == connDialing || c.phase == connRefused {
		c.remove()
		return
	}
	c.w.events.cancel(&c.dialEvent)
	out := en.outPipe()
	if last != nil && en.canSend && en.out.Last(last) {
		// Send last, preceded by the bytes for which the window had no room, possibly the rest of a
		// frame.
		n := en.out.Front()
		b := c.w.allocBuffer(n)
		at := 0
		for _, s := range en.out.Gather(c.w.iov[:0]) {
			at += copy(b[at:], s)
		}
		en.out.Wrote(n)
		out.push(segment{kind: segmentData, data: b, covered: n})
	}
	en.canSend = false
	if en.peer().closed {
		c.remove()
		return
	}
	out.push(segment{kind: segmentClose})
}

// crash closes en, whose node has crashed. The peer receives a reset unless silent is true.
func (en *endpoint) crash(silent bool) {
	c := en.conn
	en.closed, en.canSend = true, false
	en.port.endpoints = removeElement(en.port.endpoints, en)
	en.deliverWaiting() // a segment that was waiting for this endpoint is dropped or answered when it arrives
	switch {
	case c.phase == connDialing, c.phase == connRefused, en.peer().closed:
		c.remove()
		return
	case c.phase == connAccepted && en.side == 0:
		c.w.events.cancel(&c.dialEvent)
	}
	if !silent && (en.side == 1 || c.phase == connConnected || c.phase == connAccepted) {
		en.outPipe().push(segment{kind: segmentReset})
	}
}
