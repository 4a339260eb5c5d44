package inmem

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// window is how many bytes wait for the reader of a connection at most, one frame more than that at a time.
const window = 1 << 20

// A port is the carrier of a context.
type port struct {
	node *node
	core carrier.Core
	ends map[*end]struct{} // the connections; guarded by the context's lock
	dead atomic.Bool       // see Network.Kill

	mu    sync.Mutex // guards inbox, and queued and starved of the ends
	inbox []event
}

var _ carrier.Carrier = (*port)(nil)

// An end is one side of a connection. It is the carrier's record of a session (Session.Conn), and the Writer that takes frames of it.
type end struct {
	port    *port
	peer    *end
	session carrier.Session // nil until Core.Admit; guarded by the context's lock, as is the next
	views   []carrier.View  // that Pull has given, and that are copied

	queued  int  // bytes for this end in the inbox of its port; guarded by port.mu
	starved bool // the peer has more than found room; guarded by port.mu
}

// An event is what one end sends to the other.
type event struct {
	to      *end
	kind    kind
	header  carrier.Header // of a frame
	payload []byte         // of a frame, or the HELLO
	said    carrier.Bye    // of a bye
	err     error          // of refused
}

type kind int

const (
	hello   kind = iota // the HELLO of the peer
	frame               // a frame of the session
	bye                 // the peer ends the session and says why
	closed              // the peer is gone without a word
	refused             // there is no peer: an end sends it to itself
	room                // the peer takes more
)

// send puts an event for the other end into its inbox.
func (e *end) send(v event) { e.peer.post(v) }

// post puts an event into the inbox of e, and has it polled. PollSoon takes no lock: it may be called with any.
func (e *end) post(v event) {
	v.to = e
	e.port.mu.Lock()
	e.port.inbox = append(e.port.inbox, v)
	e.queued += len(v.payload)
	e.port.mu.Unlock()
	e.port.core.PollSoon()
}

// Dial implements carrier.Carrier. What it finds out at once is reported by Poll: Dial does not call Session.Fail.
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

// Flush implements carrier.Carrier. Nothing here waits, so it needs no Pause.
func (p *port) Flush(sessions []carrier.Session) {
	for _, s := range sessions {
		if e, _ := s.Conn().(*end); e != nil && e.peer != nil && !p.dead.Load() {
			e.flush()
		}
	}
}

// flush pulls what the session has. Locked.
func (e *end) flush() {
	for _, lane := range []carrier.Lane{carrier.Messages, carrier.Bulk} { // Bulk is never up, and empty
		for more := true; more; {
			more = e.session.Pull(lane, e)
			for _, v := range e.views { // Pull is over: the session may hear that it has its memory back
				e.session.Sent(v)
			}
			e.views = e.views[:0]
			if whole, _ := e.Room(); whole < 0 {
				return // an event of the kind room follows
			}
		}
	}
}

// Room implements carrier.Writer. Pull asks before each frame.
func (e *end) Room() (whole, piece int) {
	e.peer.port.mu.Lock()
	defer e.peer.port.mu.Unlock()
	if e.peer.queued >= window {
		e.peer.starved = true
		return -1, 0
	}
	return carrier.MaxWhole, carrier.PieceSize
}

// Frame implements carrier.Writer. h and payload are the caller's again afterwards.
func (e *end) Frame(h *carrier.Header, payload []byte) {
	e.send(event{kind: frame, header: *h, payload: append([]byte(nil), payload...)})
}

// Piece implements carrier.Writer. The memory of a view may be taken back at any moment, by a cancel: then CopyOut reports false, and
// nothing of the piece is sent, which Network.Exact promises.
func (e *end) Piece(h *carrier.Header, v carrier.View) {
	e.views = append(e.views, v)
	if payload := make([]byte, v.Len()); v.CopyOut(payload) {
		e.send(event{kind: frame, header: *h, payload: payload})
	} else if v.Faulted() { // it could not be read: the session ends the operation
		e.session.Faulted(v)
	}
}

// Poll implements carrier.Carrier: it delivers what is in the inbox. Zero says that PollSoon tells of the next.
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

// receive handles one event. A panic in it ends the context and not the process: see Core.UnlockInput.
func (p *port) receive(v *event) {
	p.core.Lock()
	defer p.core.UnlockInput()
	e := v.to
	e.took(len(v.payload))
	s := e.session
	if s == nil && v.kind != hello || s != nil && s.Conn() != e { // refused, or cut meanwhile
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

// took gives n bytes of the window back, and tells the peer when it waits for that. Locked.
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

// receiveHello handles the first event of a connection. The side that has dialed has a session already.
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

// receiveFrame delivers a frame. Bulk data goes to the memory that the session names.
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

// Cut implements carrier.Carrier: from now on Conn is not e, so that events for e are dropped.
func (p *port) Cut(s carrier.Session, said carrier.Bye) {
	e, _ := s.Conn().(*end)
	s.SetConn(nil)
	if e == nil || e.peer == nil || p.dead.Load() {
		return
	}
	delete(p.ends, e)
	if said.Code == codes.OK { // nothing is said
		e.send(event{kind: closed})
	} else {
		e.send(event{kind: bye, said: said})
	}
}

// Shut implements carrier.Carrier.
func (p *port) Shut() { p.node.remove(p) }

// Lingering implements carrier.Carrier: the last event of a session is in the inbox of its peer when Cut returns.
func (p *port) Lingering(time.Duration) bool { return false }

// Release implements carrier.Carrier.
func (p *port) Release() {}
