package sim

import (
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/framing"
	"github.com/quicksilver-rpc/quicksilver/internal/memfault"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// An end is what a port has of a connection.
type end struct {
	c      *conn
	side   int
	port   *port
	in     framing.In
	out    framing.Out
	cut    atomic.Bool // package na wants nothing more of it
	up     bool        // out may send
	closed bool
}

// accept gives the far end to a port.
func (en *end) accept(p *port) {
	en.port, en.up = p, true
	p.ends = append(p.ends, en)
	dialler := en.c.ends[0].port.inst.name
	en.in.Greet = func(g *frame.Greeting) error {
		l, err := p.e.Admit(p, en, g, g.Listen == dialler)
		en.in.Session, en.out.Session = l, l
		return err
	}
}

// Remote implements carrier.Locator.
func (en *end) Remote() string { return en.other().port.inst.node.name }

var _ carrier.Locator = (*end)(nil)

func (en *end) other() *end     { return &en.c.ends[1-en.side] }
func (en *end) outgoing() *pipe { return &en.c.pipes[en.side] }
func (en *end) incoming() *pipe { return &en.c.pipes[1-en.side] }

// pump sends what the session has, as far as the window goes.
func (en *end) pump() {
	if !en.up || en.closed || en.out.Session == nil {
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
		e.Pause()
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
	defer clear(w.iov)
	if _, ok := memfault.Gather(b, w.iov); !ok {
		en.out.Fault()
		w.recycle(b)
		return // the next turn of pump sends zeroes
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

// feed hands bytes to the carrier.
func (en *end) feed(b []byte) {
	w, e := en.c.w, en.port.e
	for len(b) > 0 && !en.cut.Load() && !en.closed {
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
		if !en.cut.Load() {
			if err = en.in.Parse(); err != nil && en.in.Session != nil {
				en.in.Session.Fail(err)
			}
		}
		e.Unlock()
		if err != nil && en.in.Session == nil {
			en.cut.Store(true)
			en.close(frame.ByeOf(err).Frame())
		}
	}
	en.in.Idle()
}

// serve delivers what waited for somebody to drive.
func (en *end) serve() {
	if p := en.incoming(); p.due {
		p.due = false
		en.c.w.events.set(&p.ev, en.c.w.Now())
	}
}

// hangup ends the session of an end because of err.
func (en *end) hangup(err error) {
	if en.closed {
		return
	}
	e := en.port.e
	e.Lock()
	if !en.cut.Load() && en.in.Session != nil {
		en.in.Session.Fail(err) // it cuts this end
	}
	e.Unlock()
	if en.in.Session == nil {
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
	en.port.ends = without(en.port.ends, en)
	if c.phase == connDialing || c.phase == connRefused {
		c.end()
		return
	}
	c.w.events.unset(&c.ev)
	out := en.outgoing()
	if last != nil && en.up && en.out.Last(last) {
		n := en.out.Front() // last, and before it what the window had no room for: maybe the rest of a frame
		b := c.w.buffer(n)
		at := 0
		for _, s := range en.out.Gather(c.w.iov[:0]) {
			at += copy(b[at:], s)
		}
		en.out.Wrote(n)
		out.push(segment{kind: segmentData, b: b, covered: n})
	}
	en.up = false
	if en.other().closed {
		c.end()
		return
	}
	out.push(segment{kind: segmentClose})
}

// vanish closes an end of a node that has crashed.
func (en *end) vanish(silent bool) {
	c := en.c
	en.closed, en.up = true, false
	en.port.ends = without(en.port.ends, en)
	en.serve() // what waits for this end gets its answer, if any
	switch {
	case c.phase == connDialing, c.phase == connRefused, en.other().closed:
		c.end()
		return
	case c.phase == connAccepted && en.side == 0:
		c.w.events.unset(&c.ev)
	}
	if !silent && (en.side == 1 || c.phase == connConnected || c.phase == connAccepted) {
		en.outgoing().push(segment{kind: segmentReset})
	}
}
