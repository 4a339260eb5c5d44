package na

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/simhook"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A network is one transport of a class: what its plugin has opened.
type network struct {
	carrier.Network
	scheme string
	self   string // the canonical name of the class there
}

// A domain is what the contexts of a class share: its transports, the registered memory, the budget, the clock and the randomness.
// It implements carrier.Class.
type domain struct {
	cls      *Class
	cfg      Config
	networks []network // by which peers are reached. The first is the class's own, whose names all peers have
	own      *network
	inc      [16]byte // random: this instance of the class
	addr     Addr
	clock    simhook.Clock     // nil: the real one
	sched    simhook.Scheduler // of a simulator; or nil
	faults   simhook.Faults    // likewise
	driven   bool              // the carriers of the first transport are simhook.Drivers, and wait for all
	start    time.Time

	// Of the second transport: place is what a HELLO says of where it reaches, zero while it is not used, and apart says why it is not.
	place [16]byte
	apart string

	session atomic.Uint64 // sessions made so far
	unsent  atomic.Int64  // bytes of streams that wait to leave
	missed  atomic.Int64  // bytes of room that the last peer without any was refused, less what others have yielded since
	self    selfCarrier

	mu       sync.Mutex // guards the fields below
	mems     map[[16]byte]memEntry
	bound    map[uint64]int // registered memory by the session that it is for
	reserved int64          // bytes of envelopes guaranteed to peers
	room     int64          // likewise, of room
	eps      []*endpoint
	offers   map[frame.Secret]transportOffer
}

// memEntry is registered memory; what has a session, as a lease has, is for that one only.
type memEntry struct {
	m       *Mem
	session uint64
}

var _ carrier.Class = (*domain)(nil)

// openDomain has p open its network for cls, and beside, if that is not nil, another one.
func openDomain(cls *Class, p carrier.Plugin, listen string, beside carrier.Companion) (*domain, error) {
	d := &domain{cls: cls, cfg: cls.cfg, start: time.Now(), mems: map[[16]byte]memEntry{}, bound: map[uint64]int{}, offers: map[frame.Secret]transportOffer{}}
	if d.clock, _ = p.(simhook.Clock); d.clock != nil {
		d.driven = d.clock.Driven()
	}
	d.rand(d.inc[:])
	// Sessions are numbered from anywhere: an address bound by another class of this process is not one of ours.
	d.session.Store(binary.LittleEndian.Uint64(d.inc[8:]) >> 16)
	if name := filepath.Base(os.Args[0]); d.cfg.Name == "" && !d.driven && frame.ValidName(name) {
		d.cfg.Name = name
	}
	n, err := p.Open(d, listen)
	if err != nil {
		return nil, err
	}
	if n == nil {
		return nil, brokenContract(p.Scheme(), "Open returned neither a Network nor an error")
	}
	d.addContext(p.Scheme(), n)
	if err := cmp.Or(checkNetwork(p.Scheme(), n), d.checkSelf()); err != nil {
		d.logCloseError(d.close())
		return nil, err
	}
	d.sched, _ = n.Names.(simhook.Scheduler)
	d.faults, _ = n.Names.(simhook.Faults)
	d.self.dom, d.self.route = d, route{network: &network{}, carrier: &d.self}
	if beside != nil {
		if err := d.openSecond(beside); err != nil {
			d.logCloseError(d.close())
			return nil, err
		}
	}
	d.own = &d.networks[0]
	d.addr = MakeAddr(d.own.self, 0)
	return d, nil
}

func (d *domain) addContext(scheme string, n *carrier.Network) {
	d.networks = append(d.networks, network{Network: *n, scheme: scheme, self: cmp.Or(n.Listen, d.PrivateName(scheme))})
}

// checkSelf reports why peers could not look up the name that the first transport has given this class.
func (d *domain) checkSelf() error {
	n := &d.networks[0]
	switch a, err := ParseAddr(n.self); {
	case err != nil:
		return err
	case a.Name() != n.self || a.Scheme() != n.scheme:
		return WithText(ErrInvalid, fmt.Sprintf("%q is not the name of a class at %s://: peers would look up another", n.self, n.scheme))
	}
	return nil
}

// PrivateName implements carrier.Class.
func (d *domain) PrivateName(scheme string) string { return privateName(scheme, d.inc) }

// privateName is the name of an instance that does not listen.
func privateName(scheme string, inc [16]byte) string {
	return fmt.Sprintf("%s%x", privatePrefix(scheme), inc[:8])
}

func privatePrefix(scheme string) string { return scheme + "://@" }

// Config implements carrier.Class.
func (d *domain) Config() carrier.Config {
	return carrier.Config{Logger: d.cfg.logger(), PeerTimeout: d.cfg.PeerTimeout, Contexts: d.cfg.Contexts, Eager: d.cfg.Eager, Poller: pollerSupported && !d.driven}
}

func (d *domain) limits() Limits {
	return Limits{
		MaxUnexpected: d.cfg.Eager, MaxExpected: d.cfg.Eager, MaxTag: ^Tag(0), MaxSegments: 16384,
		MaxContexts: d.cfg.Contexts, Envelopes: d.cfg.Envelopes, Scheme: d.own.scheme,
	}
}

// now reads the clock: monotonic, never zero.
func (d *domain) now() time.Duration {
	if d.clock != nil {
		return d.clock.Now()
	}
	return time.Since(d.start) + 1
}

// wallClock reads the clock by which certificates are judged.
func (d *domain) wallClock() time.Time {
	if f := d.own.WallClock; f != nil {
		return f()
	}
	return time.Now()
}

// rand fills b with random bytes that a peer cannot guess.
func (d *domain) rand(b []byte) {
	if d.clock != nil {
		d.clock.Rand(b)
		return
	}
	_, _ = rand.Read(b) // never fails
}

// close gives the transports back.
func (d *domain) close() error {
	var errs []error
	for i := len(d.networks) - 1; i >= 0; i-- {
		if f := d.networks[i].Close; f != nil {
			errs = append(errs, f())
		}
	}
	return errors.Join(errs...)
}

// logCloseError logs an error of close, if that is not nil. The logger is the program's: no lock is held.
func (d *domain) logCloseError(err error) {
	if err != nil {
		d.cfg.logger().Error("na: the network of a closed class could not be given back: its address may stay in use",
			"address", d.networks[0].self, "error", err)
	}
}

// openEndpoint makes the endpoint of c, with a carrier of each transport.
func (d *domain) openEndpoint(c *Context) (*endpoint, error) {
	e := newEndpoint(d, c)
	for i := range d.networks {
		n := &d.networks[i]
		ca, err := n.NewCarrier(e)
		if err == nil && ca == nil {
			err = brokenContract(n.scheme, "NewCarrier returned neither a Carrier nor an error")
		}
		if err != nil {
			for _, r := range e.routes {
				r.carrier.Release()
			}
			return nil, err
		}
		s, _ := ca.(carrier.Stager)
		r, _ := ca.(carrier.Reacher)
		e.routes = append(e.routes, route{n, ca, s, r})
	}
	d.mu.Lock()
	d.eps = append(d.eps[:e.id], e) // an earlier one of this id belongs to a context that could not be made
	d.mu.Unlock()
	e.faults, _ = e.routes[0].carrier.(simhook.Faults)
	return e, nil
}

// Context implements carrier.Class.
func (d *domain) Context(target int) carrier.Core {
	if e := d.endpointOf(target); e != nil {
		return e
	}
	return nil
}

// endpointOf returns the endpoint of a target id, or nil.
func (d *domain) endpointOf(target int) *endpoint {
	d.mu.Lock()
	defer d.mu.Unlock()
	if target < 0 || target >= len(d.eps) {
		return nil
	}
	return d.eps[target]
}

// register publishes m to peers that know its key, those of one session if it is for one.
func (d *domain) register(m *Mem) error {
	if d.faults != nil {
		if err := d.faults.FailOp(); err != nil {
			return err
		}
	}
	d.bindToSession(m, m.only)
	return nil
}

// bindToSession binds registered memory to one session, if that is not 0.
func (d *domain) bindToSession(m *Mem, session uint64) {
	d.mu.Lock()
	d.unbindMem(d.mems[m.Key().Token])
	d.mems[m.Key().Token] = memEntry{m, session}
	if session != 0 {
		d.bound[session]++
	}
	d.mu.Unlock()
}

// unpublishMem stops peers from reaching m, and reports whether they could.
func (d *domain) unpublishMem(m *Mem) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	entry := d.mems[m.Key().Token]
	if entry.m != m {
		return false
	}
	d.unbindMem(entry)
	delete(d.mems, m.Key().Token)
	return true
}

// listRegistered returns at most that many of what is published.
func (d *domain) listRegistered(most int) []*Mem {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]*Mem, 0, max(min(most, len(d.mems)), 0))
	for _, entry := range d.mems {
		if len(all) >= most {
			break
		}
		all = append(all, entry.m)
	}
	return all
}

// unbindMem ends the binding of memory that is unpublished, or published for another session. d.mu is held.
func (d *domain) unbindMem(entry memEntry) {
	if s := entry.session; s != 0 {
		if d.bound[s]--; d.bound[s] == 0 {
			delete(d.bound, s)
		}
	}
}

// rebindMem binds memory to another session, if it is still published.
func (d *domain) rebindMem(m *Mem, session uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if entry := d.mems[m.Key().Token]; entry.m == m {
		d.unbindMem(entry)
		d.mems[m.Key().Token] = memEntry{m, session}
		d.bound[session]++
	}
}

// isBound reports whether memory is registered for a session alone.
func (d *domain) isBound(session uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.bound[session] > 0
}

// findMem finds the memory that a peer's request names and checks the request: token, session, access and range.
func (d *domain) findMem(l *session, t frame.Tail, need Access) (*Mem, Code) {
	d.mu.Lock()
	entry, ok := d.mems[t.Token]
	d.mu.Unlock()
	switch {
	case !ok:
		return nil, ErrRevoked
	case entry.session != 0 && entry.session != l.id:
		return nil, ErrPermission
	case !entry.m.Key().Access.Can(need):
		return nil, ErrPermission
	case !entry.m.contains(t.Offset, t.Length):
		return nil, ErrInvalid
	}
	return entry.m, OK
}
