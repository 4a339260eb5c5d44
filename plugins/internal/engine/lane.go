package engine

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
)

// laneMin is the length in bytes from which a put or get uses the lane.
const laneMin = 64 << 10

// A lane is the second connection of a session, for bulk data: opened when the first large put or get begins, by the side
// that dialled the session, which names what the other side offered in its HELLO. A put or get stays where it began.
//
//	none ── a large put or get, here or (LANE) at the peer ──► dialing ── HELLO comes back ──► up
//	                                                              └── anything else ─────────► off, for this session
//
// Once it is up its end is the end of the session.
type lane struct {
	state laneState
	offer [16]byte // what the side that was dialled offered; zero at the other side
	asked bool     // the peer was asked to dial
	greet bool     // our HELLO is to be pulled
	ctl   fifo[frame.Header]
	moves fifo[*move]
}

type laneState uint8

const (
	laneNone laneState = iota
	laneDialing
	laneUp
	laneOff
)

// offerLane makes the name of a lane for the peer that has connected to us.
func (l *Link) offerLane() {
	if _, ok := l.carrier.(Laner); ok {
		l.e.eng.opts.Rand(l.lane.offer[:])
		l.e.lanes[l.lane.offer] = l
	}
}

// useLane tells whether bulk data of n bytes goes over the lane; if there could be one it is opened for what follows.
func (l *Link) useLane(n int64) bool {
	if n < laneMin {
		return false
	}
	if l.lane.state == laneUp {
		return true
	}
	l.wantLane()
	return false
}

// wantLane opens the lane, or asks the peer to, unless that was done.
func (l *Link) wantLane() {
	switch dialer, _ := l.carrier.(Laner); {
	case l.lane.state != laneNone || l.state != linkUp:
	case l.lane.offer != [16]byte{}:
		if !l.lane.asked {
			l.lane.asked = true
			l.control(frame.Header{Kind: frame.Lane})
		}
	case dialer != nil && l.peer.HasLane():
		l.lane.state, l.lane.greet = laneDialing, true
		dialer.DialLane(l)
	}
}

// admitLane takes in the lane of a session.
func (e *Endpoint) admitLane(conn any, g frame.Greeting) (*Link, error) {
	l := e.lanes[g.Lane]
	if l == nil || l.state != linkUp || l.lane.state != laneNone || l.peer.Incarnation != g.Incarnation {
		return nil, na.WithText(na.ErrNoEntry, "no session waits for this lane")
	}
	if err := l.checkLane(conn); err != nil {
		return nil, err
	}
	l.Lane = conn
	l.lane.state, l.lane.greet = laneUp, true
	l.kick()
	return l, nil
}

// LaneFailed hears that the second connection could not be made, or has ended. The carrier has dropped it; when it was in
// use the session ends. Locked.
func (l *Link) LaneFailed(err error) {
	if l.lane.state == laneUp {
		l.fail(err)
		return
	}
	l.Lane, l.lane.state = nil, laneOff
}

// DeliverLane is Deliver for frames from the lane. Locked.
func (l *Link) DeliverLane(h *frame.Header, payload []byte) error {
	if l.state != linkUp {
		return nil
	}
	l.heard = true
	switch {
	case h.Kind == frame.Goaway:
		return na.WithText(na.Code(h.Tag), "the peer refused the lane: "+string(payload[:min(len(payload), 512)]))
	case h.Kind == frame.Hello && l.lane.state == laneDialing:
		g, err := ParseHello(h, payload)
		if err == nil && g.Lane != l.peer.Lane {
			err = na.WithText(na.ErrProtocol, "HELLO is for another lane")
		}
		if err == nil {
			err = l.checkLane(l.Lane)
		}
		if err == nil {
			l.lane.state = laneUp
		}
		return err
	case l.lane.state == laneUp && (h.Kind == frame.GetDone || h.Kind == frame.Cancel):
		return l.Deliver(h, payload)
	}
	return na.WithText(na.ErrProtocol, fmt.Sprintf("%v frame on the lane for bulk data", h.Kind))
}

// MoreLane tells whether NextLane would yield something. Locked.
func (l *Link) MoreLane() bool {
	return l.state == linkUp && (l.lane.greet || l.lane.state == laneUp && (l.lane.ctl.len() > 0 || l.lane.moves.len() > 0))
}

// NextLane is Next for the lane. Locked.
func (l *Link) NextLane(b []byte) (out []byte, c Chunk, ok bool) {
	switch {
	case l.state != linkUp:
		return b, c, false
	case l.lane.greet:
		l.lane.greet = false
		g := l.greeting()
		if !g.HasLane() {
			g.Lane = l.peer.Lane
		}
		h := frame.Header{Kind: frame.Hello, Tag: frame.Magic}
		return h.Append(b, g.Append(nil)), c, true
	case l.lane.state != laneUp:
		return b, c, false
	}
	if l.lane.ctl.len() == 0 {
		if out, c, ok = l.nextChunk(b, &l.lane.moves); ok {
			return out, c, true
		}
	}
	if l.lane.ctl.len() == 0 {
		return b, c, false
	}
	h := l.lane.ctl.pop()
	l.fill(&h, true)
	return h.AppendFront(b, 0), c, true
}
