package engine

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
)

// A Transport is one kind of network of a class.
type Transport struct {
	Scheme string
	// Self is the canonical name of the class: the address that it listens on. Empty means a private name made of the
	// incarnation, the one that peers see.
	Self string
	// Listen is Self if peers can dial it, else empty.
	Listen string
	// Exact says that the carriers never send anything in place of bytes that are gone: the bytes vouch for themselves.
	Exact bool
	// Batch is after how many operations frames leave that are held back to leave together, because a peer that looks may begin.
	// Zero means that they wait for the end.
	Batch int
	Names Names
	// Place is the same for classes that reach one another by this transport. It counts for a second one only.
	Place [16]byte
	// Carrier makes the carrier of a context.
	Carrier func(e *Endpoint) (Carrier, error)
}

// Options are what a plugin gives to its engine.
type Options struct {
	// Transports are how peers are reached. The first is the class's own, whose names all peers have; Join adds a second.
	Transports []Transport
	// Secure says that the first transport uses TLS.
	Secure bool
	// Host identifies the machine; empty when unknown.
	Host string
	Now  func() time.Duration
	Rand func([]byte)
	// Driven says that the carriers of the first transport are na.Drivers, and wait for all.
	Driven bool
	// Unassisted says that contexts which nobody drives are left alone.
	Unassisted bool
	// TakeTimeout is how long a peer may take nothing of what there is for it (see Taker). Zero means for ever.
	TakeTimeout time.Duration
	// Close gives back what the plugin holds; may be nil.
	Close func() error
}

// An Engine implements na.Domain over carriers.
type Engine struct {
	cls  *na.Class
	cfg  na.Config
	opts Options
	own  *Transport
	inc  [16]byte
	addr na.Addr

	// Of the second transport: place is what a HELLO says of where it reaches, zero while it is not used, and apart says why it is not.
	place       [16]byte
	apart       string
	closeSecond func() // may be nil

	session atomic.Uint64 // sessions made so far
	missed  atomic.Int64  // bytes of room that the last peer without any was refused, less what others have yielded since
	self    self

	mu       sync.Mutex // guards the fields below
	mems     map[[16]byte]memEntry
	bound    map[uint64]int // registered memory by the session that it is for
	reserved int64          // bytes of envelopes guaranteed to peers
	room     int64          // likewise, of room
	eps      []*Endpoint
	offers   map[frame.Secret]offer
}

// memEntry is registered memory; what has a session, as a lease has, is for that one only.
type memEntry struct {
	m       *na.Mem
	session uint64
}

var _ na.Domain = (*Engine)(nil)

// New returns the engine of a class.
func New(cls *na.Class, opts Options) *Engine {
	g := &Engine{cls: cls, cfg: cls.Config(), opts: opts, mems: map[[16]byte]memEntry{}, bound: map[uint64]int{}, offers: map[frame.Secret]offer{}}
	opts.Rand(g.inc[:])
	// Sessions are numbered from anywhere: an address bound by another class of this process is not one of ours.
	g.session.Store(binary.LittleEndian.Uint64(g.inc[8:]) >> 16)
	if name := filepath.Base(os.Args[0]); g.cfg.Name == "" && !opts.Driven && na.ValidName(name) {
		g.cfg.Name = name
	}
	g.own = &g.opts.Transports[0]
	if g.own.Self == "" {
		g.own.Self = privateName(g.own.Scheme, g.inc)
	}
	g.addr = na.MakeAddr(g.own.Self, 0)
	g.self.eng, g.self.route = g, route{Transport: &Transport{}, carrier: &g.self}
	return g
}

// privateName is the name of an instance that does not listen.
func privateName(scheme string, inc [16]byte) string {
	return fmt.Sprintf("%s%x", privatePrefix(scheme), inc[:8])
}

func privatePrefix(scheme string) string { return scheme + "://@" }

// Addr implements na.Domain.
func (g *Engine) Addr() na.Addr { return g.addr }

// Incarnation is the random identity of this instance of the class.
func (g *Engine) Incarnation() [16]byte { return g.inc }

// Limits implements na.Domain.
func (g *Engine) Limits() na.Limits {
	return na.Limits{
		MaxUnexpected: g.cfg.Eager, MaxExpected: g.cfg.Eager, MaxTag: ^na.Tag(0), MaxSegments: 16384,
		MaxContexts: g.cfg.Contexts, Envelopes: g.cfg.Envelopes, Scheme: g.own.Scheme,
	}
}

// Now implements na.Domain.
func (g *Engine) Now() time.Duration { return g.opts.Now() }

// Rand implements na.Domain.
func (g *Engine) Rand(b []byte) { g.opts.Rand(b) }

// Driven implements na.Domain.
func (g *Engine) Driven() bool { return g.opts.Driven }

// Unassisted implements na.Domain.
func (g *Engine) Unassisted() bool { return g.opts.Unassisted }

// Close implements na.Domain.
func (g *Engine) Close() error {
	if g.closeSecond != nil {
		g.closeSecond()
	}
	if g.opts.Close != nil {
		return g.opts.Close()
	}
	return nil
}

// Endpoint implements na.Domain.
func (g *Engine) Endpoint(host *na.Host) (na.Endpoint, error) {
	e := newEndpoint(g, host)
	for i := range g.opts.Transports {
		t := &g.opts.Transports[i]
		c, err := t.Carrier(e)
		if err != nil {
			for _, r := range e.routes {
				r.carrier.Release()
			}
			return nil, err
		}
		s, _ := c.(Stager)
		r, _ := c.(Reacher)
		e.routes = append(e.routes, route{t, c, s, r})
	}
	g.mu.Lock()
	g.eps = append(g.eps[:e.id], e) // an earlier one of this id belongs to a context that could not be made
	g.mu.Unlock()
	if g.opts.Driven {
		e.Driver = e.routes[0].carrier.(na.Driver)
	}
	return e, nil
}

// Context returns the endpoint of a target id, or nil.
func (g *Engine) Context(target int) *Endpoint {
	g.mu.Lock()
	defer g.mu.Unlock()
	if target < 0 || target >= len(g.eps) {
		return nil
	}
	return g.eps[target]
}

// HandshakeFailed tells the first context of a TLS handshake, where it is not known yet which one the peer wants.
func (g *Engine) HandshakeFailed(peer, why string) {
	if e := g.Context(0); e != nil {
		e.host.HandshakeFailed(peer, why)
	}
}

// Publish implements na.Domain.
func (g *Engine) Publish(m *na.Mem) error {
	g.publish(m, m.Session())
	return nil
}

// publish binds registered memory to one session, if that is not 0.
func (g *Engine) publish(m *na.Mem, session uint64) {
	g.mu.Lock()
	g.unbind(g.mems[m.Key().Token])
	g.mems[m.Key().Token] = memEntry{m, session}
	if session != 0 {
		g.bound[session]++
	}
	g.mu.Unlock()
}

// Unpublish implements na.Domain.
func (g *Engine) Unpublish(m *na.Mem) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	entry := g.mems[m.Key().Token]
	if entry.m != m {
		return false
	}
	g.unbind(entry)
	delete(g.mems, m.Key().Token)
	return true
}

// unbind ends the binding of memory that is unpublished, or published for another session. g.mu is held.
func (g *Engine) unbind(entry memEntry) {
	if s := entry.session; s != 0 {
		if g.bound[s]--; g.bound[s] == 0 {
			delete(g.bound, s)
		}
	}
}

// rebind binds memory to another session, if it is still published.
func (g *Engine) rebind(m *na.Mem, session uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if entry := g.mems[m.Key().Token]; entry.m == m {
		g.unbind(entry)
		g.mems[m.Key().Token] = memEntry{m, session}
		g.bound[session]++
	}
}

// binds reports whether memory is registered for a session alone.
func (g *Engine) binds(session uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.bound[session] > 0
}

// reach finds the memory that a peer's request names and checks the request: token, session, access and range.
func (g *Engine) reach(l *Link, t frame.Tail, need na.Access) (*na.Mem, na.Code) {
	g.mu.Lock()
	entry, ok := g.mems[t.Token]
	g.mu.Unlock()
	switch {
	case !ok:
		return nil, na.ErrRevoked
	case entry.session != 0 && entry.session != l.session:
		return nil, na.ErrPermission
	case !entry.m.Key().Access.Can(need):
		return nil, na.ErrPermission
	case !entry.m.Contains(t.Offset, t.Length):
		return nil, na.ErrInvalid
	}
	return entry.m, na.OK
}
