package inmem

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// window is the maximum number of bytes that may await the reader of a connection. It may be exceeded by one frame at a
// time.
const window = 1 << 20

// A port is the carrier of a context.
type port struct {
	node *node
	core carrier.Core
	ends map[*end]struct{} // connections; guarded by the context's lock
	dead atomic.Bool       // see Network.Kill

	mu    sync.Mutex // guards inbox, and queued and starved of the ends
	inbox []event
}

var _ carrier.Carrier = (*port)(nil)

// An end is one side of a connection. It is the carrier's record of a session (Session.Conn), and the Writer that
// receives the session's frames.
type end struct {
	port    *port
	peer    *end
	session carrier.Session // nil until Core.Admit; guarded by the context's lock, as is views
	views   []carrier.View  // views that Pull has passed and that have been copied

	queued  int  // number of bytes for this end in its port's inbox; guarded by port.mu
	starved bool // the peer has more data than fits; guarded by port.mu
}

// An event is a message from one end of a connection to the other.
type event struct {
	to      *end
	kind    kind
	header  carrier.Header // for kind frame
	payload []byte         // for kind frame: the payload; for kind hello: the HELLO
	said    carrier.Bye    // for kind bye
	err     error          // for kind refused
}

type kind int

const (
	hello   kind = iota // the peer's HELLO
	frame               // a frame of the session
	bye                 // the peer ends the session and states the reason
	closed              // the peer is lost without notice
	refused             // there is no such peer; an end sends this event to itself
	room                // the peer accepts more data
)

// send puts an event into the inbox of the other end.
func (e *end) send(v event) { e.peer.post(v) }

// post puts an event into the inbox of e and requests a poll. PollSoon acquires no lock, so post may be called with any
// lock held.
func (e *end) post(v event) {
	v.to = e
	e.port.mu.Lock()
	e.port.inbox = append(e.port.inbox, v)
	e.queued += len(v.payload)
	e.port.mu.Unlock()
	e.port.core.PollSoon()
}

// Dial implements carrier.Carrier. Even immediate results are reported by Poll, because Dial must not call
// Session.Fail.
func (p *port) Dial(s carrier.Session) {
	e := &end{port: p, session: s}
	s.SetConn(e)
	to, err := p.node.net.find(s.Name(), s.Target())
	if err != nil {
		e.post(event{kind: refused, err: err})
		return
	}
	e.peer = &end{port: to, peer: e}
	p.ends[e] = struct{}{}
	e.send(event{kind: hello, payload: s.Hello(carrier.Messages, nil, nil)})
}

// Flush implements carrier.Carrier. It never waits, so it needs no Pause.
func (p *port) Flush(sessions []carrier.Session) {
	for _, s := range sessions {
		if e, _ := s.Conn().(*end); e != nil && e.peer != nil && !p.dead.Load() {
			e.flush()
		}
	}
}

// flush pulls the session's data. The context's lock must be held.
func (e *end) flush() {
	for _, lane := range []carrier.Lane{carrier.Messages, carrier.Bulk} { // the lane Bulk is never up in this plugin, so it is empty
		for more := true; more; {
			more = e.session.Pull(lane, e)
			for _, v := range e.views { // Pull has returned, so the session may be notified that its memory is released
				e.session.Sent(v)
			}
			e.views = e.views[:0]
			if whole, _ := e.Room(); whole < 0 {
				return // an event of kind room follows
			}
		}
	}
}

// Room implements carrier.Writer. Pull calls it before each frame.
func (e *end) Room() (whole, piece int) {
	e.peer.port.mu.Lock()
	defer e.peer.port.mu.Unlock()
	if e.peer.queued >= window {
		e.peer.starved = true
		return -1, 0
	}
	return carrier.MaxWhole, carrier.PieceSize
}

// Frame implements carrier.Writer. The caller may reuse h and payload when it returns.
func (e *end) Frame(h *carrier.Header, payload []byte) {
	e.send(event{kind: frame, header: *h, payload: append([]byte(nil), payload...)})
}

// Piece implements carrier.Writer. A cancellation may withdraw the memory of a view at any time. CopyOut then returns
// false, and no part of the piece is sent, as Network.Exact guarantees.
func (e *end) Piece(h *carrier.Header, v carrier.View) {
	e.views = append(e.views, v)
	if payload := make([]byte, v.Len()); v.CopyOut(payload) {
		e.send(event{kind: frame, header: *h, payload: payload})
	} else if v.Faulted() { // the memory could not be read; the session ends the operation
		e.session.Faulted(v)
	}
}

// Poll implements carrier.Carrier. It delivers the events in the inbox. It returns zero because PollSoon announces
// further events.
func (p *port) Poll(time.Duration) time.Duration {
	p.mu.Lock()
	batch := p.inbox
	p.inbox = nil
	p.mu.Unlock()
	for i := range batch {
		if !p.dead.Load() {
			p.receive(&batch[i])
		}
	}
	return 0
}

// receive handles one event. If it panics, only the context is ended and not the process; see Core.UnlockInput.
func (p *port) receive(v *event) {
	p.core.Lock()
	defer p.core.UnlockInput()
	e := v.to
	e.took(len(v.payload))
	s := e.session
	if s == nil && v.kind != hello || s != nil && s.Conn() != e { // refused, or cut in the meantime
		return
	}
	switch v.kind {
	case hello:
		e.receiveHello(v.payload)
	case frame:
		if err := e.receiveFrame(&v.header, v.payload); err != nil {
			s.Fail(err)
		}
	case bye:
		s.Refused(v.said)
	case closed:
		s.Fail(codes.WithText(codes.ErrPeerLost, "the peer is gone"))
	case refused:
		s.Fail(v.err)
	case room:
		e.flush()
	}
}

// took adds n bytes to the window again, and notifies the peer if it is waiting for that. The port's lock must be held.
func (e *end) took(n int) {
	e.port.mu.Lock()
	e.queued -= n
	tell := e.starved && e.queued < window/2
	e.starved = e.starved && !tell
	e.port.mu.Unlock()
	if tell {
		e.send(event{kind: room})
	}
}

// receiveHello handles the first event of a connection. The side that dialed already has a session.
func (e *end) receiveHello(payload []byte) {
	g, err := carrier.ParseGreeting(payload)
	if e.session != nil {
		if err == nil {
			err = e.session.Greet(&g)
		}
		if err != nil {
			e.session.Fail(err)
		}
		return
	}
	if err == nil {
		e.session, err = e.port.core.Admit(e.port, e, &g, e.peer.port.node.name == g.Listen)
	}
	if err != nil {
		e.send(event{kind: bye, said: carrier.ByeOf(err)})
		return
	}
	e.port.ends[e] = struct{}{}
	e.send(event{kind: hello, payload: e.session.Hello(carrier.Messages, nil, nil)})
	e.flush()
}

// receiveFrame delivers a frame. Bulk data is written to the memory that the session specifies.
func (e *end) receiveFrame(h *carrier.Header, payload []byte) error {
	e.session.Heard(h.Kind.Bulk())
	if !h.Kind.Bulk() {
		return e.session.Deliver(h, payload)
	}
	v, err := e.session.Place(h)
	if err != nil {
		return err
	}
	v.CopyIn(0, payload)
	return e.session.Placed(v)
}

// Remote implements carrier.Locator.
func (e *end) Remote() string {
	if name := e.peer.port.node.name; name != "" {
		return name
	}
	return "this process"
}

// Cut implements carrier.Carrier. Afterward Conn no longer returns e, so events for e are dropped.
func (p *port) Cut(s carrier.Session, said carrier.Bye) {
	e, _ := s.Conn().(*end)
	s.SetConn(nil)
	if e == nil || e.peer == nil || p.dead.Load() {
		return
	}
	delete(p.ends, e)
	if said.Code == codes.OK { // no reason is sent
		e.send(event{kind: closed})
	} else {
		e.send(event{kind: bye, said: said})
	}
}

// Shut implements carrier.Carrier.
func (p *port) Shut() { p.node.remove(p) }

// Lingering implements carrier.Carrier. It returns false, because the last event of a session is in its peer's inbox
// when Cut returns.
func (p *port) Lingering(time.Duration) bool { return false }

// Release implements carrier.Carrier.
func (p *port) Release() {}
