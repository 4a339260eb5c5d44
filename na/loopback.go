package na

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/memfault"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A selfCarrier is the loopback carrier, which connects the contexts of a class to each other and
// to themselves. Frames are copied in memory and follow the same rules as on other carriers. Each
// session has a twin, which is its counterpart in the destination endpoint. The session of a
// context with itself is its own twin.
//
// To pump a session is to pull its frames one at a time and deliver each to the twin. At most one
// goroutine pumps at a time, and others add their sessions to todo. The number of bytes that one
// goroutine pumps is limited, so that other goroutines cannot keep it busy forever by adding
// sessions. When the limit is reached, the context of the next session continues. A selfCarrier
// never holds the locks of two endpoints at once.
type selfCarrier struct {
	dom   *domain
	route route

	pending atomic.Bool // todo may contain sessions that no goroutine is pumping
	rest    atomic.Bool // todo contains sessions that a drain has left for Poll

	mu      sync.Mutex // guards the fields below, and session.looping
	todo    []*session
	pumping bool
	parcel  selfFrame // used by the pumping goroutine
}

// A selfFrame implements carrier.Writer for a single frame.
type selfFrame struct {
	head  frame.Header
	buf   []byte
	view  carrier.View // payload of a piece
	taken bool
}

// Room implements carrier.Writer.
func (p *selfFrame) Room() (whole, piece int) {
	if p.taken {
		return -1, 0
	}
	return frame.MaxWhole, carrier.PieceSize
}

// Frame implements carrier.Writer.
func (p *selfFrame) Frame(h *frame.Header, payload []byte) {
	p.head, p.buf, p.taken = *h, append(p.buf[:0], payload...), true
}

// Piece implements carrier.Writer.
func (p *selfFrame) Piece(h *frame.Header, v carrier.View) { p.head, p.view, p.taken = *h, v, true }

const (
	maxPump  = 256 << 10   // limit on consecutive bytes from one session; the last frame may exceed it
	maxDrain = 4 * maxPump // limit on consecutive bytes moved by one goroutine, about a tenth of a millisecond
	minCost  = 4 << 10     // minimum cost of a frame, in bytes that could be copied in the same time
)

// A selfConn connects a session and its twin.
type selfConn struct {
	mu   sync.Mutex // guards ends
	ends [2]*session
}

var _ carrier.Carrier = (*selfCarrier)(nil)

// connectSelf brings up a loopback session. Its twin is created with the first frame.
func (l *session) connectSelf() {
	c := &selfConn{ends: [2]*session{l}}
	if l.named.Target() == l.e.id {
		c.ends[1] = l
	}
	l.upSelf(c)
}

// upSelf brings up l as one of the two ends of c.
func (l *session) upSelf(c *selfConn) {
	g := l.e.dom
	l.conn, l.route = c, &g.self.route
	l.startUp(frame.Greeting{
		Features: frame.FeatureWithdraw | frame.FeatureReserve, Versions: frame.Versions(), Messages: g.cls.messages.Range, Incarnation: g.inc,
		Context: uint16(l.named.Target()), Target: uint16(l.e.id), Envelopes: l.guaranteed, Eager: uint32(g.cfg.Eager),
	})
}

// peerConn returns the twin of l, or nil if it has not been created yet.
func (c *selfConn) peerConn(l *session) *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ends[0] == l {
		return c.ends[1]
	}
	return c.ends[0]
}

// twinOf returns the twin of l, creating it if necessary. It returns nil if the destination
// context does not exist.
func (p *selfCarrier) twinOf(l *session) *session {
	c := l.conn.(*selfConn)
	if other := c.peerConn(l); other != nil {
		return other
	}
	e := p.dom.endpointOf(l.named.Target())
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.shut {
		return nil
	}
	named := p.dom.addr.WithTarget(l.e.id)
	t := e.addSession(named)
	t.setGuarantee(int(l.guaranteed))
	if e.names[named] == nil { // otherwise both contexts have connected simultaneously, and each keeps its own pair
		e.names[named] = t
	}
	c.mu.Lock()
	c.ends[1] = t
	c.mu.Unlock()
	t.upSelf(c)
	return t
}

// Dial implements carrier.Carrier. It does nothing, because connectSelf brings sessions up.
func (p *selfCarrier) Dial(carrier.Session) {}

// Flush implements carrier.Carrier.
func (p *selfCarrier) Flush(ls []carrier.Session) {
	p.mu.Lock()
	for _, l := range ls {
		p.pushTodoLocked(l.(*session))
	}
	p.mu.Unlock()
	if p.rest.Load() { // Poll continues, because no call does more than one drain
		return
	}
	e := ls[0].(*session).e
	e.Pause()
	defer e.Lock()
	p.drainTodo()
}

// pushTodoLocked adds l to todo if it is not already there. The caller must hold p.mu.
func (p *selfCarrier) pushTodoLocked(l *session) {
	if !l.looping {
		l.looping = true
		p.todo = append(p.todo, l)
	}
}

// drainTodo pumps up to maxDrain bytes of the sessions in todo, unless another goroutine is
// pumping.
func (p *selfCarrier) drainTodo() {
	p.mu.Lock()
	if p.pumping {
		p.mu.Unlock()
		return
	}
	p.pumping = true
	p.pending.Store(false)
	p.rest.Store(false)
	for room := maxDrain; len(p.todo) > 0 && room > 0; {
		l := p.todo[0]
		p.todo = p.todo[1:]
		l.looping = false
		p.mu.Unlock()
		n := p.pumpConn(l)
		p.mu.Lock()
		if n >= maxPump {
			p.pushTodoLocked(l)
		}
		room -= max(n, minCost)
	}
	p.pumping = false
	next := p.nextRunnerLocked()
	p.mu.Unlock()
	if next != nil {
		next.pollSoon()
		next.flushSoon()
	}
}

// nextRunnerLocked returns the context that must continue to pump the sessions in todo. It returns
// nil if todo is empty or if all of the contexts are closing. The caller must hold p.mu.
func (p *selfCarrier) nextRunnerLocked() *Context {
	if len(p.todo) == 0 {
		p.todo = nil
		return nil
	}
	for _, l := range p.todo {
		if !l.e.nctx.Closing() {
			p.rest.Store(true)
			return l.e.nctx
		}
	}
	p.pending.Store(true)
	return nil // shutDown drains the sessions, which it has not closed yet
}

// pumpConn moves up to maxPump bytes of frames from l and returns their cost in bytes.
func (p *selfCarrier) pumpConn(l *session) (n int) {
	for n < maxPump {
		to := p.twinOf(l)
		down := to != nil && to.isDown()
		l.e.mu.Lock()
		switch {
		case to == nil: // the context does not exist
			l.close(WithText(ErrUnreachable, fmt.Sprintf("context %d is not open in this process", l.named.Target())), OK, "", false)
			l.e.mu.Unlock()
			return n
		case down:
			l.failWith(WithText(ErrPeerLost, "loopback session closed"))
			l.e.mu.Unlock()
			return n
		}
		f := &p.parcel
		f.taken, f.view = false, nil
		l.Pull(carrier.Messages, f)
		l.e.mu.Unlock()
		if !f.taken {
			return n
		}
		n += max(f.head.Payload(), minCost)
		to.e.mu.Lock()
		if !f.head.Kind.Bulk() {
			if err := to.Deliver(&f.head, f.buf); err != nil {
				to.failWith(err)
			}
			to.e.Unlock()
			continue
		}
		v, err := to.Place(&f.head)
		if err != nil {
			to.failWith(err)
		}
		to.e.mu.Unlock()
		copyView(v, f.view)
		l.e.mu.Lock()
		l.Sent(f.view)
		l.e.mu.Unlock()
		to.e.mu.Lock()
		if err := to.Placed(v); err != nil {
			to.failWith(err)
		}
		to.e.Unlock()
	}
	return n
}

// copyView copies src to dst and records a memory fault of either. It copies nothing if the memory
// of src was withdrawn.
func copyView(dst, src carrier.View) {
	if src.Len() == 0 || !src.Borrow() {
		return
	}
	defer src.Return()
	if !dst.Borrow() {
		return
	}
	defer dst.Return()
	from := carrier.Slices(nil, src, 0, src.Len(), math.MaxInt)
	to := carrier.Slices(nil, dst, 0, src.Len(), math.MaxInt)
	for len(from) > 0 {
		n, ok := memfault.Copy(to[0], from[0])
		if !ok {
			if memfault.Readable(from[0]) {
				src = dst
			}
			src.Fault()
			return
		}
		if from[0] = from[0][n:]; len(from[0]) == 0 {
			from = from[1:]
		}
		if to[0] = to[0][n:]; len(to[0]) == 0 {
			to = to[1:]
		}
	}
}

func (l *session) isDown() bool {
	l.e.mu.Lock()
	defer l.e.mu.Unlock()
	return l.state == stateDown
}

// Cut implements carrier.Carrier. The twin is closed the next time its session is pumped.
func (p *selfCarrier) Cut(s carrier.Session, _ frame.Bye) {
	l := s.(*session)
	other := l.conn.(*selfConn).peerConn(l)
	if other == nil {
		return
	}
	p.mu.Lock() // the other endpoint must not be locked here; the next pump finds that l has ended
	p.pushTodoLocked(other)
	p.pending.Store(true)
	p.mu.Unlock()
}

// Poll implements carrier.Carrier.
func (p *selfCarrier) Poll(time.Duration) time.Duration { return 0 }

// Lingering implements carrier.Carrier.
func (p *selfCarrier) Lingering(time.Duration) bool { return false }

// Shut implements carrier.Carrier.
func (p *selfCarrier) Shut() {}

// Release implements carrier.Carrier.
func (p *selfCarrier) Release() {}
