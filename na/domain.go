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

// A network is an open transport of a class.
type network struct {
	carrier.Network
	scheme string
	self   string // canonical name of the class in this transport
}

// A domain holds the state shared by the contexts of a class: its transports, registered memory,
// envelope budget, clock and random source. It implements carrier.Class.
type domain struct {
	cls      *Class
	cfg      Config
	networks []network // the first is the class's own, whose names serve as the addresses of all peers
	own      *network
	inc      [16]byte // incarnation, a random ID of this instance of the class
	addr     Addr
	clock    simhook.Clock     // if nil, the system clock is used
	sched    simhook.Scheduler // scheduler of the simulator, or nil if there is none
	faults   simhook.Faults    // faults injected by the simulator, or nil if there is none
	// set if the carriers of the first transport are simhook.Drivers, which wait for all transports
	driven bool
	start  time.Time

	// ID of the group of processes that the second transport can reach, sent in HELLO; zero if the
	// second transport is not used
	place [16]byte
	apart string // reason why the second transport is not used

	session atomic.Uint64 // number of the last session
	unsent  atomic.Int64  // bytes of streams that are waiting to be sent
	// bytes of room that the most recent peer was refused, less those that sessions have since
	// freed for it
	missed atomic.Int64
	self   selfCarrier

	mu       sync.Mutex // guards the fields below
	mems     map[[16]byte]memEntry
	bound    map[uint64]int // number of registered regions by the session to which they are restricted
	reserved int64          // bytes of the envelopes guaranteed to peers
	room     int64          // bytes of room granted to peers
	eps      []*endpoint
	offers   map[frame.Secret]transportOffer
}

// A memEntry is registered memory. If session is set, as for a lease, only that session may access
// the memory.
type memEntry struct {
	m       *Mem
	session uint64 // 0 for any session
}

var _ carrier.Class = (*domain)(nil)

// openDomain opens the network of plugin p for cls and, if beside is not nil, that of beside.
func openDomain(cls *Class, p carrier.Plugin, listen string, beside carrier.Companion) (*domain, error) {
	d := &domain{cls: cls, cfg: cls.cfg, start: time.Now(), mems: map[[16]byte]memEntry{}, bound: map[uint64]int{}, offers: map[frame.Secret]transportOffer{}}
	if d.clock, _ = p.(simhook.Clock); d.clock != nil {
		d.driven = d.clock.Driven()
	}
	d.rand(d.inc[:])
	// Session numbers start at a random value, so that an address bound by another class of this
	// process does not match.
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
	d.addNetwork(p.Scheme(), n)
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

// addNetwork adds an open transport to d.
func (d *domain) addNetwork(scheme string, n *carrier.Network) {
	d.networks = append(d.networks, network{Network: *n, scheme: scheme, self: cmp.Or(n.Listen, d.PrivateName(scheme))})
}

// checkSelf returns an error if peers could not look up the name that the first transport assigned
// to this class.
func (d *domain) checkSelf() error {
	n := &d.networks[0]
	switch a, err := ParseAddr(n.self); {
	case err != nil:
		return err
	case a.Name() != n.self || a.Scheme() != n.scheme:
		return WithText(ErrInvalid, fmt.Sprintf("invalid class name %q for %s://", n.self, n.scheme))
	}
	return nil
}

// PrivateName implements carrier.Class.
func (d *domain) PrivateName(scheme string) string { return privateName(scheme, d.inc) }

// privateName returns the name of a class instance that does not listen.
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

// now returns the current time of the class's clock, which is monotonic and never zero.
func (d *domain) now() time.Duration {
	if d.clock != nil {
		return d.clock.Now()
	}
	return time.Since(d.start) + 1
}

// wallClock returns the time against which the validity of certificates is checked.
func (d *domain) wallClock() time.Time {
	if f := d.own.WallClock; f != nil {
		return f()
	}
	return time.Now()
}

// rand fills b with cryptographically random bytes, or with bytes from the simulator's clock if
// there is one.
func (d *domain) rand(b []byte) {
	if d.clock != nil {
		d.clock.Rand(b)
		return
	}
	_, _ = rand.Read(b) // never fails
}

// close closes the transports in reverse order.
func (d *domain) close() error {
	var errs []error
	for i := len(d.networks) - 1; i >= 0; i-- {
		if f := d.networks[i].Close; f != nil {
			errs = append(errs, f())
		}
	}
	return errors.Join(errs...)
}

// logCloseError logs err, returned by close, if it is not nil. It calls the user's logger, so the
// caller must not hold a lock.
func (d *domain) logCloseError(err error) {
	if err != nil {
		d.cfg.logger().Error("na: closing the network failed; its address may remain in use",
			"address", d.networks[0].self, "error", err)
	}
}

// openEndpoint creates the endpoint of c, with a carrier for each transport.
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
	d.eps = append(d.eps[:e.id], e) // an existing endpoint with this ID belongs to a context whose creation failed
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

// endpointOf returns the endpoint with the given target id, or nil.
func (d *domain) endpointOf(target int) *endpoint {
	d.mu.Lock()
	defer d.mu.Unlock()
	if target < 0 || target >= len(d.eps) {
		return nil
	}
	return d.eps[target]
}

// register makes m accessible to the peers that have its key. If m is restricted to one session,
// only the peer of that session can access it.
func (d *domain) register(m *Mem) error {
	if d.faults != nil {
		if err := d.faults.FailOp(); err != nil {
			return err
		}
	}
	d.bindToSession(m, m.only)
	return nil
}

// bindToSession registers m. If session is not 0, only that session may access it.
func (d *domain) bindToSession(m *Mem, session uint64) {
	d.mu.Lock()
	d.unbindMemLocked(d.mems[m.Key().Token])
	d.mems[m.Key().Token] = memEntry{m, session}
	if session != 0 {
		d.bound[session]++
	}
	d.mu.Unlock()
}

// unpublishMem revokes peers' access to m and reports whether m was registered.
func (d *domain) unpublishMem(m *Mem) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	entry := d.mems[m.Key().Token]
	if entry.m != m {
		return false
	}
	d.unbindMemLocked(entry)
	delete(d.mems, m.Key().Token)
	return true
}

// listRegistered returns registered regions, in no particular order. The result has no more than
// most elements.
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

// unbindMemLocked decrements the number of regions restricted to the session of entry. The caller
// must hold d.mu.
func (d *domain) unbindMemLocked(entry memEntry) {
	if s := entry.session; s != 0 {
		if d.bound[s]--; d.bound[s] == 0 {
			delete(d.bound, s)
		}
	}
}

// rebindMem restricts m to another session if m is still registered.
func (d *domain) rebindMem(m *Mem, session uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if entry := d.mems[m.Key().Token]; entry.m == m {
		d.unbindMemLocked(entry)
		d.mems[m.Key().Token] = memEntry{m, session}
		d.bound[session]++
	}
}

// isBound reports whether any registered memory is restricted to the given session.
func (d *domain) isBound(session uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.bound[session] > 0
}

// findMem returns the memory to which a request from the peer of l refers. If the token, the
// session, the access mode or the range is not valid, it returns the code with which the request
// must be refused.
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
