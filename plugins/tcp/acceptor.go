package tcp

import (
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/engine"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
)

// acceptPause is how long nothing is accepted after the process ran out of descriptors.
const acceptPause = 100 * time.Millisecond

// A door is where peers come in: the listening sockets of a class, and the contexts that they ask for.
//
//	acceptLoop ─► guest: TLS, HELLO ─► carrier.adopt, of the context that the HELLO names
type door struct {
	main   *listener // nil when there is none
	guests lobby

	mu       sync.Mutex  // guards the fields below, and the listeners; taken inside an endpoint's lock
	open     []carrier   // that have not been shut, in the order of their ids
	deferred []*listener // that accept once there are Options.Spread contexts
}

// A carrier is what a context of the class has, to those who connect.
type carrier interface {
	engine.Carrier
	endpoint() *engine.Endpoint
	// adopt makes g, whose peer has said hello, a connection of the carrier. then is called without the lock, by the
	// goroutine of g, which it may keep. After an error g is what it was. Locked.
	adopt(g *guest, hello *frame.Greeting, verified bool) (then func(), err error)
}

var errNoBulk = na.WithText(na.ErrNoEntry, "no session waits for this connection")

// A listener is a listening socket, with a goroutine that accepts once a context exists.
type listener struct {
	l       *net.TCPListener
	done    chan struct{}
	started bool
	closed  bool
}

func newListener(l *net.TCPListener) *listener { return &listener{l: l, done: make(chan struct{})} }

func (l *listener) close() {
	if !l.closed {
		l.closed = true
		close(l.done)
		_ = l.l.Close()
	}
}

// close closes the listening socket if no context ever did.
func (p *door) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.main != nil {
		p.main.close()
	}
}

// join lets peers in to a new carrier. With ReusePort each has a listening socket of its own, which is returned.
func (d *domain) join(ca carrier) (own *listener, err error) {
	p := &d.door
	p.mu.Lock()
	defer p.mu.Unlock()
	starts := p.main
	switch {
	case p.main == nil:
	case !p.main.started:
		if d.opts.ReusePort {
			own = p.main
		}
	case d.opts.ReusePort:
		l, err := d.bindSibling()
		if err != nil {
			return nil, err
		}
		own = newListener(l)
		starts = own
	case p.main.closed:
		return nil, na.WithText(na.ErrClosed, "the listening socket was closed with the last context")
	}
	p.open = append(p.open, ca)
	if starts != nil && !starts.started {
		starts.started = true
		p.deferred = append(p.deferred, starts)
	}
	if len(p.open) >= d.opts.Spread {
		for _, l := range p.deferred {
			go d.acceptLoop(l)
		}
		p.deferred = nil
	}
	return own, nil
}

// unregister lets nobody in to ca any more, and nobody at all when it was the last.
func (p *door) unregister(ca carrier, own *listener) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open = slices.DeleteFunc(p.open, func(other carrier) bool { return other == ca })
	if own != nil {
		own.close()
	}
	if len(p.open) > 0 {
		return
	}
	if p.main != nil {
		p.main.close()
	}
	p.guests.clear()
}

// spread chooses the context for a peer that does not say which it wants.
func (d *domain) spread(hello *frame.Greeting) {
	if n := uint64(d.opts.Spread); n > 0 && hello.Target == 0 {
		hello.Any = true
		hello.Target = uint16((binary.LittleEndian.Uint64(hello.Incarnation[:]) + uint64(hello.Context)) % n)
	}
}

// carrier returns the open carrier of a target id, or nil.
func (d *domain) carrier(target int) carrier {
	e := d.eng.Context(target) // nil until the engine knows its carrier
	if e == nil {
		return nil
	}
	d.door.mu.Lock()
	defer d.door.mu.Unlock()
	for _, ca := range d.door.open {
		if ca.endpoint() == e {
			return ca
		}
	}
	return nil
}

// acceptLoop accepts until the socket is closed.
func (d *domain) acceptLoop(l *listener) {
	for {
		nc, err := l.l.AcceptTCP()
		switch {
		case err == nil:
			d.newGuest(nc, l.done)
		case errors.Is(err, net.ErrClosed):
			select {
			case <-l.done:
			default: // not by this domain: it is a socket of the program's, Options.Listener
				d.log.Error("the listening socket was closed beneath the node: nobody can connect any more", "addr", l.l.Addr().String())
			}
			return
		default: // out of descriptors, most likely
			pause := time.NewTimer(acceptPause)
			select {
			case <-pause.C:
			case <-l.done:
				pause.Stop()
				return
			}
		}
	}
}
