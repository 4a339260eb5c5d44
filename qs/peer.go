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

// A Peer is a service at one or more addresses, or the origin of a request. It is copied by value;
// copies are the same Peer.
type Peer struct{ p *peer }

// A peer is the state of a Peer.
type peer struct {
	n *Node
	i int // index of the context that calls use
	// single is the only backend, if there is no choice and there are no probes; then the fields
	// from mu on are unused.
	single         *backend
	balancer       Balancer
	healthInterval time.Duration // see PeerOptions.HealthInterval
	opts           PeerOptions

	mu          sync.Mutex // guards the fields below, and the backends
	services    []serviceWatch
	backends    []*backend
	candidates  []Candidate   // of backends; reused by each choice
	healthTimer *na.Op        // nil while the timer does not run
	lastCall    time.Duration // time of the last call
}

// A serviceWatch is one service of a Peer, with its addresses.
type serviceWatch struct {
	text  string  // the service as it was given
	fixed hg.Addr // its address; zero if w finds its addresses
	w     *addrWatch
	addrs *[]hg.Addr // the result of w that the backends were made of
}

// PeerOptions configure the resolution of a Peer's addresses and the choice among them. The zero
// value works.
type PeerOptions struct {
	// Resolver resolves each service to addresses. Nil means DNS for the hosts of tcp and udp
	// addresses; other addresses are used unchanged. DNS uses the Resolver of Config.TCP, or else
	// of the options of a plugin in Config.HG.NA.Plugins, or else of the system.
	//
	// "tcp://kv.example:9000" is every address of kv.example with that port, in an order that
	// differs between processes. If a host has addresses of both families, each address of the
	// family that the resolver prefers counts as a server. It is dialed together with one of the
	// other family, as in RFC 8305: 250 ms later, or as soon as the first has failed.
	Resolver Resolver
	// Balancer chooses the address of each attempt. Nil means Config.Balancer.
	Balancer Balancer
	// ResolveInterval is the interval between calls of Resolver.Watch, if Watch returns before its
	// ctx is done. Zero means 30 s. After an address has failed Watch is called sooner. After 4 ×
	// ResolveInterval without a call Watch is canceled; the next call starts it again.
	ResolveInterval time.Duration
	// HealthInterval is the interval at which addresses are probed, as by Ping, while there are
	// calls. An address that does not respond within it, or is not ready, is marked as failed. The
	// minimum is 10 ms. Zero means to probe only failed addresses, before they get calls again.
	HealthInterval time.Duration
}

// minHealth is the least HealthInterval: a lower one would make probes a large part of the load.
const minHealth = 10 * time.Millisecond

// Peer returns the Peer of a service at addrs, in order of preference, with default options (see
// PeerWith). A call uses the first healthy address, or that of Config.Balancer. Peer resolves host
// names until ctx is done, and does not dial: if no server runs there, the first call or Ping
// fails. Keep the Peer and share it between goroutines; it needs no Close.
func (n *Node) Peer(ctx context.Context, addrs ...string) (Peer, error) {
	return n.PeerWith(ctx, PeerOptions{}, addrs...)
}

// PeerWith returns the Peer of a service. It blocks until the Resolver returns the first result, or
// ctx is done. It does not dial. Later calls use the latest result of the Resolver: an address that
// disappears gets no new calls, and calls in flight there continue.
//
// An address fails if it is unreachable, if its connection is lost, if a call to it ends by its
// deadline or by RetryPolicy.ProgressTimeout, or if it refuses as not ready. It is then skipped for
// 0.5 to 1 s, doubling up to 30 s. Once it responds to a probe, one trial call is sent (a second one
// if the first takes as long); if that succeeds, the address is in use again. If all addresses
// fail, calls use the one with the oldest failure. A repeated call uses an address that it has not
// tried, if a healthy one exists.
//
// Calls in flight at a process that freezes end, or are repeated by Retry, after
// Config.PeerTimeout.
//
// A Peer uses at most the first 1,024 addresses. An address whose host is not found is omitted,
// unless none is left. An address that does not match the transport of n is an error that matches
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
				p.services = append(p.services, s) // it may be resolved later
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

// check returns an error if o is invalid, or there are no addresses.
func (o *PeerOptions) check(addrs []string) error {
	var what string
	switch {
	case len(addrs) == 0:
		what = "no address"
	case o.ResolveInterval < 0:
		what = fmt.Sprintf("ResolveInterval is %v, want a positive duration, or 0 for 30 s", o.ResolveInterval)
	case o.HealthInterval < 0 || o.HealthInterval > 0 && o.HealthInterval < minHealth:
		what = fmt.Sprintf("HealthInterval is %v, want at least %v, or 0 to probe only failed addresses",
			o.HealthInterval, minHealth)
	case o.Resolver != nil && !reflect.ValueOf(o.Resolver).Comparable():
		what = fmt.Sprintf("the Resolver type %T is not comparable: use a pointer", o.Resolver)
	default:
		return nil
	}
	return fmt.Errorf("qs: peer: %s: %w", what, hg.ErrInvalid)
}

// findService starts to watch the service text, and waits for its first addresses.
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

// followServicesLocked updates the backends if a Resolver has returned other addresses, and keeps
// the watches of the services running. The caller holds mu.
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

// updateBackendsLocked rebuilds the backends from the current addresses, of which it uses the first
// maxAddrs. Existing backends keep their state. The caller holds mu.
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

// noBackendErrorLocked returns the error of a call for which there is no address. The caller holds
// mu.
func (p *peer) noBackendErrorLocked() error {
	text := "the service " + p.serviceTexts() + " has no address"
	for i := range p.services {
		if w := p.services[i].w; w != nil && w.lastError() != nil {
			text += ": " + w.lastError().Error()
		}
	}
	return na.WithText(hg.ErrUnreachable, text)
}

// serviceTexts returns the services as they were given, separated by commas.
func (p *peer) serviceTexts() string {
	var all []string
	for i := range p.services {
		all = append(all, p.services[i].text)
	}
	return strings.Join(all, ",")
}

// Ping sends a ping to the node at the address of p (see Addr), and returns the round-trip time. It
// blocks until the response arrives, or ctx is done. It connects if there is no connection.
//
//   - A node also responds if it is not ready or drains, and if all its limits on requests are
//     reached: a ping needs no worker, no envelope and no authorizer.
//   - Errors match ErrUnreachable (no process listens), ErrTimeout or ErrCanceled (ctx),
//     ErrPeerLost (the connection is lost), and ErrInvalid (p is zero).
//   - Ping does not affect which addresses calls use. Peers probe failed addresses themselves
//     (PeerOptions.HealthInterval).
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

// errNoPeer returns the error of a call of method with the zero Peer.
func errNoPeer(method string) error {
	return &hg.Error{Op: "forward", RPC: method, Fate: NotRun,
		Err: na.WithText(ErrInvalid, "zero Peer: use Node.Peer")}
}

// Addr returns the address to which the next attempt may go. It is the zero Addr for the zero Peer,
// and if there is no address.
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

// Node returns the node of p; nil for the zero Peer.
func (p Peer) Node() *Node {
	if p.p == nil {
		return nil
	}
	return p.p.n
}

// Identity returns the identity of the process at the address of p (see Addr): its verified
// certificates with TLS, and the transport. ok is false without a connection; Ping connects. It
// does not block.
func (p Peer) Identity() (id na.Identity, ok bool) {
	if p.p == nil {
		return na.Identity{}, false
	}
	return p.p.n.contexts[p.p.i].NA().Identity(p.Addr())
}

// String returns the services of p, separated by commas: names as they were given, or addresses.
func (p Peer) String() string {
	switch {
	case p.p == nil:
		return ""
	case p.p.single != nil:
		return p.p.single.addr.Label()
	}
	return p.p.serviceTexts()
}

// A backend is the state of one address of a Peer. It is kept when the list of addresses changes.
// No call waits for a failed address: a probe is sent there first, then one trial call, and only
// then all other calls.
//
//	up ─── an attempt fails ───► failing ─── pause over, at the next attempt anywhere ───► probing
//	▲                               ▲ ▲                                                       │
//	│                               │ └──── no answer, or not ready: a longer pause ──────────┤
//	└── an attempt is answered ── trying ◄──── an attempt takes it ─── ready ◄── answered ────┘
//	     (in any state)             ├ fails: a longer pause, as above
//	                                └ takes longer than the pause: ready for another, next time after twice as long
//
// An attempt that began before the last change between up and failing does not change the state:
// the calls to a frozen process fail together, and count as one failure.
type backend struct {
	addr       hg.Addr
	inFlight   int           // number of attempts
	lent       int64         // bytes that the attempts lend
	latency    time.Duration // moving average of the time of an attempt
	latencyAt  time.Duration // when latency was computed
	answeredAt time.Duration // time of the last answer
	probing    bool          // a probe of HealthInterval is in flight
	state      backendState
	generation int           // counts the changes between up and failing
	failedAt   time.Duration // time of the last failure
	pause      time.Duration // length of the current or last pause
	pauseEnd   time.Duration // end of the pause; in state trying, until then no other attempt is sent
}

// A backendState is a state of the picture at backend.
type backendState uint8

const (
	backendUp backendState = iota
	backendFailing
	backendProbing
	backendReady
	backendTrying
)
