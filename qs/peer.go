package qs

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A Peer is a service at one or more addresses, or the origin of a request. It is copied freely; copies are the same Peer.
type Peer struct{ p *peer }

type peer struct {
	n              *Node
	i              int      // of the context that calls leave by
	single         *backend // the one address that there will ever be, of a Peer with no choice and no probes
	balancer       Balancer
	healthInterval time.Duration
	opts           PeerOptions

	mu          sync.Mutex // guards the fields below, and what places point to
	services    []serviceWatch
	backends    []*backend
	candidates  []Candidate // of places, for pick
	healthTimer *na.Op      // the timer of health; nil when it is not set
	lastCall    time.Duration
}

// A serviceWatch is where a Peer has addresses from.
type serviceWatch struct {
	text  string
	fixed hg.Addr // zero if w has them
	w     *addrWatch
	addrs *[]hg.Addr // of w, that places has
}

// PeerOptions say how a Peer finds its addresses and chooses among them. The zero value works.
type PeerOptions struct {
	// Resolver finds the addresses of each service. Nil is DNS for hosts of tcp and udp, which asks the Resolver of Config.TCP, or of the
	// options of a plugin in Config.HG.NA.Plugins, the system's if that is nil: "tcp://kv.example:9000" is every address of kv.example,
	// with that port, in an order of each process's own. If a host has addresses of both families, each one of the family that the
	// resolver prefers counts as a server, and is dialed together with one of the other family, as RFC 8305 says: 250 ms later, or as soon
	// as it has failed. All other addresses are what they say.
	Resolver Resolver
	// Balancer chooses the address of each attempt. Nil is Config.Balancer.
	Balancer Balancer
	// ResolveInterval is how often a Resolver is asked whose Watch returns before its ctx ends. Zero means 30 s. It is asked anew when an address
	// has failed. After 4 × ResolveInterval without a call Watch is ended, and called again at the next one.
	ResolveInterval time.Duration
	// HealthInterval is how often addresses are probed, as by Ping, while there are calls; one that does not answer within that time,
	// or is not ready, fails. At least 10 ms. Zero means that only those are probed that failed, before they get calls again.
	HealthInterval time.Duration
}

// minHealth keeps probes from being most of what a peer does.
const minHealth = 10 * time.Millisecond

// Peer returns the service at addrs, in order of preference: PeerWith without options. A call goes
// to the first address that does not fail, or as Config.Balancer says. Peer looks up host names
// until ctx ends, and dials nobody: a server that is not there is an error of the first call, or of
// Ping. Keep the Peer and share it between goroutines; it needs no Close.
func (n *Node) Peer(ctx context.Context, addrs ...string) (Peer, error) {
	return n.PeerWith(ctx, PeerOptions{}, addrs...)
}

// PeerWith returns the Peer of a service. It blocks until the Resolver has answered for the first
// time, or ctx ends, and dials nobody. Later calls follow what the Resolver says: an address that
// disappears gets no new calls, and those in flight there continue.
//
// An address fails when it cannot be reached, is lost, is given up by a call's deadline or by
// RetryPolicy.ProgressTimeout, or refuses as not ready. It is then skipped for 0.5 to 1 s, doubling
// up to 30 s. Once it answers a probe, one trial call is sent (a second one if the first takes as
// long); if that succeeds the address is back in use. If all addresses fail, calls go where the
// failure is oldest. A repeated call goes to an address that it has not been at, if one does not
// fail.
//
// Calls in flight at a process that freezes end, or are repeated by Retry, after
// Config.PeerTimeout: nobody can know before.
//
// A Peer has at most 1,024 addresses: the first. An address whose host is not found is left out,
// unless none is left. An address that does not fit the transport of n is an error that matches
// ErrInvalid or hg.ErrUnsupported.
func (n *Node) PeerWith(ctx context.Context, o PeerOptions, addrs ...string) (Peer, error) {
	if err := o.check(addrs); err != nil {
		return Peer{}, err
	}
	if o.ResolveInterval == 0 {
		o.ResolveInterval = defaultResolveInterval
	}
	p := &peer{n: n, balancer: o.Balancer, healthInterval: o.HealthInterval, opts: o}
	if p.balancer == nil {
		p.balancer = n.cfg.Balancer
	}
	var errs []error
	for _, text := range addrs {
		s, err := n.findService(ctx, o, text)
		switch hg.CodeOf(err) {
		case na.OK:
			p.services = append(p.services, s)
		case ErrInvalid, hg.ErrUnsupported:
			return Peer{}, fmt.Errorf("qs: peer: %w", err)
		default:
			errs = append(errs, err)
			if s.w != nil {
				p.services = append(p.services, s) // it may be found later
			}
		}
	}
	p.updateBackendsLocked()
	switch {
	case len(p.backends) > 0:
	case len(errs) > 0:
		return Peer{}, fmt.Errorf("qs: peer: %w", errors.Join(errs...))
	default:
		return Peer{}, fmt.Errorf("qs: peer: %w", p.noBackendErrorLocked())
	}
	if len(p.services) == 1 && p.services[0].w == nil && p.healthInterval == 0 {
		p.single = p.backends[0]
	}
	if len(n.contexts) > 1 {
		p.i = int(maphash.String(seed, p.backends[0].addr.String()) % uint64(len(n.contexts)))
	}
	return Peer{p}, nil
}

// check says what is wrong with o.
func (o *PeerOptions) check(addrs []string) error {
	var what string
	switch {
	case len(addrs) == 0:
		what = "no address is given"
	case o.ResolveInterval < 0:
		what = fmt.Sprintf("ResolveInterval is %v, want a time, or 0 for 30 s", o.ResolveInterval)
	case o.HealthInterval < 0 || o.HealthInterval > 0 && o.HealthInterval < minHealth:
		what = fmt.Sprintf("HealthInterval is %v, want at least %v, or 0 for no probes of those that do well", o.HealthInterval, minHealth)
	case o.Resolver != nil && !reflect.ValueOf(o.Resolver).Comparable():
		what = fmt.Sprintf("the Resolver is a %T, which cannot be compared: give a pointer", o.Resolver)
	default:
		return nil
	}
	return fmt.Errorf("qs: peer: %s: %w", what, hg.ErrInvalid)
}

// findService finds what text names, and waits for the first answer.
func (n *Node) findService(ctx context.Context, o PeerOptions, text string) (s serviceWatch, err error) {
	s.text = text
	if o.Resolver == nil {
		o.Resolver = dnsResolver{n}
	}
	if _, ok := o.Resolver.(dnsResolver); ok {
		if _, _, _, ok := splitHost(text); !ok {
			s.fixed, err = n.hctx.LookupWait(ctx, text)
			return s, err
		}
	}
	if s.w, err = n.watchService(watchKey{o.Resolver, text}, o.ResolveInterval); err != nil {
		return s, err
	}
	return s, s.w.waitFirst(ctx)
}

// followServicesLocked takes in what the Resolver has said since the last call, and keeps it watching. Locked.
func (p *peer) followServicesLocked(now time.Duration) {
	changed := false
	for i := range p.services {
		s := &p.services[i]
		if s.w == nil {
			continue
		}
		s.w.lastCall.Store(int64(now))
		if s.w.ended.Load() {
			if w, err := p.n.watchService(s.w.key, p.opts.ResolveInterval); err == nil {
				s.w = w
			}
		}
		if found := s.w.found.Load(); found != nil && found != s.addrs {
			changed = true
		}
	}
	if changed {
		p.updateBackendsLocked()
	}
}

// updateBackendsLocked makes places of the addresses that there are now, of the first maxAddrs. Those that were there stay as they are. Locked.
func (p *peer) updateBackendsLocked() {
	was := make(map[hg.Addr]*backend, len(p.backends))
	for _, at := range p.backends {
		was[at.addr] = at
	}
	p.backends = nil
	now := map[hg.Addr]struct{}{}
	add := func(addr hg.Addr) {
		if _, again := now[addr]; again || len(now) == maxAddrs {
			return
		}
		now[addr] = struct{}{}
		at := was[addr]
		if at == nil {
			at = &backend{addr: addr}
		}
		p.backends = append(p.backends, at)
	}
	for i := range p.services {
		s := &p.services[i]
		if s.w == nil {
			add(s.fixed)
			continue
		}
		if found := s.w.found.Load(); found != nil {
			s.addrs = found
		}
		if s.addrs != nil {
			for _, addr := range *s.addrs {
				add(addr)
			}
		}
	}
}

// noBackendErrorLocked is the error of a call that there is no address for. Locked.
func (p *peer) noBackendErrorLocked() error {
	text := "the service " + p.serviceTexts() + " has no address"
	for i := range p.services {
		if w := p.services[i].w; w != nil && w.lastError() != nil {
			text += ": " + w.lastError().Error()
		}
	}
	return na.WithText(hg.ErrUnreachable, text)
}

// serviceTexts returns the services as they were given, with commas between. They do not change.
func (p *peer) serviceTexts() string {
	var all []string
	for i := range p.services {
		all = append(all, p.services[i].text)
	}
	return strings.Join(all, ",")
}

// Ping asks whether a process at the address of p, as Addr returns it, drives its node, and returns how long the answer took. It answers
// also when it is not ready or drains, and when every limit on requests there is reached: a ping uses no worker, no place and no envelope, and no
// authorizer is asked. Ping blocks until then, or until ctx ends, and connects if there is no connection. The error is ErrUnreachable
// where nobody listens, ErrTimeout or ErrCanceled when ctx ends, ErrPeerLost when the connection does, ErrInvalid for the zero Peer. It
// does not change where calls go: an address that fails is probed by the Peer itself (PeerOptions.HealthInterval).
func (p Peer) Ping(ctx context.Context) (time.Duration, error) {
	if p.p == nil {
		return 0, errNoPeer(hg.PingRPC)
	}
	n := p.p.n
	begun := n.now()
	err := n.probeAddr(ctx, p.p.i, p.Addr())
	if code := hg.CodeOf(err); code == ErrNotReady || code == ErrDraining {
		err = nil
	}
	return n.now() - begun, err
}

func errNoPeer(method string) error {
	return &hg.Error{Op: "forward", RPC: method, Fate: NotRun, Err: na.WithText(ErrInvalid, "the Peer is zero; Node.Peer makes one")}
}

// Addr returns the address that the next attempt may go to; the zero Addr for the zero Peer, and when there is none.
func (p Peer) Addr() hg.Addr {
	switch {
	case p.p == nil:
		return hg.Addr{}
	case p.p.single != nil:
		return p.p.single.addr
	}
	p.p.mu.Lock()
	defer p.p.mu.Unlock()
	if at := p.p.chooseBackendLocked(nil); at != nil {
		return at.addr
	}
	return hg.Addr{}
}

// Node returns the node that calls of p leave by; nil for the zero Peer.
func (p Peer) Node() *Node {
	if p.p == nil {
		return nil
	}
	return p.p.n
}

// Identity says what is known of the process at the address of p, as Addr returns it: its verified certificates by TLS, and the transport
// by which it is reached. ok is false while there is no connection; Ping makes one. It does not block.
func (p Peer) Identity() (id na.Identity, ok bool) {
	if p.p == nil {
		return na.Identity{}, false
	}
	return p.p.n.contexts[p.p.i].NA().Identity(p.Addr())
}

// String returns the services, with commas between: names as they were given, and addresses.
func (p Peer) String() string {
	switch {
	case p.p == nil:
		return ""
	case p.p.single != nil:
		return p.p.single.addr.Label()
	}
	return p.p.serviceTexts()
}

// A backend is what a Peer knows of one of its addresses. It stays the same when the list of addresses changes. No call waits for
// an address that has failed: a probe asks there, then one call tries it, and only then do all others.
//
//	up ─── an attempt fails ───► failing ─── pause over, at the next attempt anywhere ───► probing
//	▲                               ▲ ▲                                                       │
//	│                               │ └──── no answer, or not ready: a longer pause ──────────┤
//	└── an attempt is answered ── trying ◄──── an attempt takes it ─── ready ◄── answered ────┘
//	     (in any state)             ├ fails: a longer pause, as above
//	                                └ lasts longer than the pause did: ready for another, and the next time after twice as long
//
// An attempt that began before the last change between up and failing says nothing: those that hang in a frozen process end
// all at once, and are one failure.
type backend struct {
	addr       hg.Addr
	inFlight   int
	lent       int64
	latency    time.Duration // by an attempt, about
	latencyAt  time.Duration // when that was known
	answeredAt time.Duration // when there was an answer
	probing    bool          // a probe of Health is under way
	state      backendState
	generation int           // counts those between up and failing
	failedAt   time.Duration // when it last did
	pause      time.Duration
	pauseEnd   time.Duration // its end; when trying, until when no other attempt does
}

type backendState uint8

const (
	backendUp backendState = iota
	backendFailing
	backendProbing
	backendReady
	backendTrying
)
