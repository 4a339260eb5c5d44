package tcp

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/engine"
)

// acceptPause is how long nothing is accepted after the process ran out of descriptors.
const acceptPause = 100 * time.Millisecond

// polledDomain is what the carriers of a class share when they use the pollers of their contexts.
type polledDomain struct {
	main *listenFD // the first listening socket; nil when there is none

	mu   sync.Mutex // guards open and polled.own; taken inside an endpoint's lock
	open []*polled  // carriers that have not been shut, in the order of their ids
}

// A polled is the carrier of a context whose sockets are in the context's poller.
type polled struct {
	names
	d      *domain
	e      *engine.Endpoint
	poller *na.Poller
	work   atomic.Bool // broken or graves is not empty

	// Guarded by the endpoint's lock.
	conns    map[*conn]struct{}
	broken   []*conn // dials that failed at once
	graves   []*conn // dead connections whose descriptors are still open
	stalled  stalled
	released bool

	// Of the goroutine that leads.
	half   map[*inbound]struct{}
	expire time.Duration // when the first of half may be due; 0 when never
	paused *listening    // not watched until resume
	resume time.Duration

	bell *bell // rung by those who do handshakes; nil without TLS

	own *listening // the socket that this context accepts from; guarded by polledDomain.mu
}

var (
	_ engine.Carrier = (*polled)(nil)
	_ engine.Laner   = (*polled)(nil)
)

// newPolled makes the carrier of a context. The first one accepts; with ReusePort each does.
func (d *domain) newPolled(e *engine.Endpoint) (engine.Carrier, error) {
	ca := &polled{
		names: d.names, d: d, e: e, poller: e.Context().Poller(),
		conns: map[*conn]struct{}{}, half: map[*inbound]struct{}{},
	}
	if err := ca.hang(); err != nil {
		return nil, err
	}
	if err := d.polled.add(ca); err != nil {
		ca.bell.close()
		return nil, err
	}
	return ca, nil
}

// add takes in a new carrier, and has it accept if that is its part.
func (p *polledDomain) add(ca *polled) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.main == nil:
	case p.main.free():
		if err := p.main.give(ca); err != nil {
			return err
		}
	case ca.d.opts.ReusePort:
		if err := ca.listenToo(); err != nil {
			return err
		}
	case len(p.open) == 0:
		return na.WithText(na.ErrClosed, "the listening socket was closed with the last context")
	}
	p.open = append(p.open, ca)
	return nil
}

// listenToo gives ca a listening socket of its own on the port of the class.
func (ca *polled) listenToo() error {
	l, err := ca.d.bindSibling()
	if err != nil {
		return err
	}
	own, err := newListenFD(l)
	if err != nil {
		return err
	}
	if err := own.give(ca); err != nil {
		own.close()
		return err
	}
	return nil
}

// polledCarrier returns the open carrier of a target id, or nil.
func (d *domain) polledCarrier(target int) *polled {
	e := d.eng.Context(target) // nil until the engine knows its carrier
	if e == nil {
		return nil
	}
	d.polled.mu.Lock()
	defer d.polled.mu.Unlock()
	for _, ca := range d.polled.open {
		if ca.e == e {
			return ca
		}
	}
	return nil
}

// Dial implements engine.Carrier. It reports nothing by itself: what fails at once is found by Poll, because the caller
// is in the middle of starting an operation.
func (ca *polled) Dial(l *engine.Link) { l.Conn = ca.dial(l, false) }

// DialLane implements engine.Laner.
func (ca *polled) DialLane(l *engine.Link) { l.Lane = ca.dial(l, true) }

func (ca *polled) dial(l *engine.Link, lane bool) *conn {
	c := ca.newConn(-1, l, lane)
	c.connecting = true
	if err := c.dial(l.Name()); err != nil {
		c.err = unreachable("connect", err)
		ca.broken = append(ca.broken, c)
		ca.work.Store(true)
		ca.e.Context().Nudge()
	}
	return c
}

// Flush implements engine.Carrier.
func (ca *polled) Flush(l *engine.Link) {
	ca.e.Lock()
	if c, _ := l.Conn.(*conn); c != nil {
		c.flush()
	}
	if c, _ := l.Lane.(*conn); c != nil {
		c.flush()
	}
	ca.e.Unlock()
}

// Cut implements engine.Carrier. The descriptor is closed by Poll, which the end of the connection wakes.
func (ca *polled) Cut(l *engine.Link, last []byte) {
	c, _ := l.Conn.(*conn)
	lane, _ := l.Lane.(*conn)
	l.Conn, l.Lane = nil, nil
	if c != nil {
		c.cut(last)
	}
	if lane != nil {
		lane.cut(nil)
	}
}

// cut drops one connection. Locked.
func (c *conn) cut(last []byte) {
	if c.dead {
		return
	}
	c.dead = true
	c.last = last
	c.in.End()
	ca := c.ca
	ca.graves = append(ca.graves, c)
	ca.work.Store(true)
	if !c.writing { // else the writer does it when it comes out
		c.farewell()
	}
	ca.e.Context().Nudge()
}

// Poll implements engine.Carrier.
func (ca *polled) Poll(now time.Duration) {
	if ca.work.Load() {
		ca.tidy()
	}
	if ca.expire != 0 && now >= ca.expire {
		ca.expireHalf(now)
	}
	if ca.stalled.due(now) {
		ca.lookAfter(now)
	}
	if ca.paused != nil && now >= ca.resume {
		ca.paused.watch(true)
		ca.paused = nil
	}
}

// tidy reports dials that failed at once and closes the descriptors of dead connections.
func (ca *polled) tidy() {
	ca.e.Lock()
	defer ca.e.Unlock()
	ca.work.Store(false)
	broken := ca.broken
	ca.broken = nil
	for _, c := range broken {
		if !c.dead {
			c.fail(c.err)
		}
	}
	graves := ca.graves
	ca.graves = nil
	for _, c := range graves {
		if c.writing {
			ca.graves = append(ca.graves, c)
			ca.work.Store(true)
			continue
		}
		c.close()
	}
}

// NextTimer implements engine.Carrier.
func (ca *polled) NextTimer() time.Duration {
	if len(ca.broken) > 0 {
		return 1
	}
	at := ca.expire
	if next := time.Duration(ca.stalled.at.Load()); next != 0 && (at == 0 || next < at) {
		at = next
	}
	if ca.paused != nil && (at == 0 || ca.resume < at) {
		at = ca.resume
	}
	return at
}

// Shut implements engine.Carrier: another open context accepts from now on; when there is none, nobody does.
func (ca *polled) Shut() {
	p := &ca.d.polled
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, other := range p.open {
		if other == ca {
			p.open = append(p.open[:i], p.open[i+1:]...)
			break
		}
	}
	if ca.own == nil {
		return
	}
	l := ca.own.l
	if !ca.d.opts.ReusePort && len(p.open) > 0 && l.give(p.open[0]) == nil {
		return
	}
	l.close()
}

// Release implements engine.Carrier.
func (ca *polled) Release() {
	for p := range ca.half {
		p.drop()
	}
	ca.e.Lock()
	defer ca.e.Unlock()
	ca.released = true
	ca.bell.close()
	for c := range ca.conns {
		if !c.writing { // else the writer closes it when it comes out
			c.close()
		}
	}
}
