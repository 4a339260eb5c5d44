package sim

import (
	"slices"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// Remains returns the numbers that are 0 in a quiet world: connections, held events, segments in
// flight.
func (w *World) Remains() (conns, held, segments int) {
	w.takeTurn()
	defer w.releaseTurn()
	for _, c := range w.openConns {
		for i := range c.pipes {
			segments += len(c.pipes[i].segments)
		}
	}
	return len(w.openConns), len(w.heldEvents), segments
}

// Sleepers counts the goroutines that wait for something to happen.
func (w *World) Sleepers() int { return int(w.sleepers.Load()) }

// A RawHost is a peer of which only the connections work: its node is paused, and a test writes and
// reads their bytes.
type RawHost struct {
	p     *port
	taken []*endpoint
}

// Raw opens a class on a node of its own, for its name, and stops that node.
func (w *World) Raw(name string) (*RawHost, error) {
	n := w.Node(name)
	cls, err := na.Open(scheme+"://"+name, na.Config{Plugins: []na.Plugin{n.Plugin()}})
	if err == nil {
		_, err = cls.NewContext()
	}
	if err != nil {
		return nil, err
	}
	n.Pause(0)
	w.takeTurn()
	defer w.releaseTurn()
	return &RawHost{p: n.instances[0].ports[0]}, nil
}

// A Raw is an end of a connection of a RawHost.
type Raw struct {
	w    *World
	en   *endpoint
	over bool
}

// Dial connects to context target of the class that listens on name, and advances time until the
// answer has arrived.
func (h *RawHost) Dial(name string, target int) *Raw {
	w := h.p.w
	en := newConn(h.p, name, target)
	w.runInTurn(en.conn.startDial, true)
	for en.conn.phase == connDialing || en.conn.phase == connAccepted {
		w.Sleep(time.Microsecond)
	}
	h.taken = append(h.taken, en)
	return &Raw{w: w, en: en}
}

// Accept returns the newest connection that another node has made, once; nil if there is none.
func (h *RawHost) Accept() *Raw {
	w := h.p.w
	w.takeTurn()
	defer w.releaseTurn()
	for _, en := range slices.Backward(h.p.endpoints) {
		if !slices.Contains(h.taken, en) {
			h.taken = append(h.taken, en)
			return &Raw{w: w, en: en}
		}
	}
	return nil
}

// Write sends b, however much is in flight.
func (r *Raw) Write(b []byte) {
	r.w.takeTurn()
	defer r.w.releaseTurn()
	if !r.en.closed {
		r.en.outPipe().push(segment{kind: segmentData, data: slices.Clone(b)})
	}
}

// Read returns the bytes that have arrived; over is whether no more will.
func (r *Raw) Read() (b []byte, over bool) {
	r.w.takeTurn()
	defer r.w.releaseTurn()
	for p := r.en.inPipe(); p.waitsForReceiver; p.waitsForReceiver = len(p.segments) > 0 && p.segments[0].at <= r.w.Now() {
		s := p.pop()
		p.bytes -= len(s.data)
		b, r.over = append(b, s.data...), r.over || s.kind != segmentData
		if p.senderWaits {
			p.senderWaits = false
			r.w.events.schedule(&p.roomEvent, r.w.timeAfter(r.w.drawDelay()))
		}
	}
	return b, r.over
}

// Close ends the connection.
func (r *Raw) Close() {
	r.w.takeTurn()
	defer r.w.releaseTurn()
	r.en.closeWith(nil)
}
