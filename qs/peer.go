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
	"github.com/quicksilver-rpc/quicksilver/internal/errtext"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A Peer represents a service at one or more addresses, or the process that sent a request. Copies
// of a Peer refer to the same state.
type Peer struct{ p *peer }

// A peer holds the state shared by all copies of a Peer.
type peer struct {
	n *Node
	i int // index in the node's contexts of the context used for calls
	// single is the only backend if there is just one address and health probes are off. In that
	// case the fields below are unused, starting with mu.
	single         *backend
	balancer       Balancer
	healthInterval time.Duration // see PeerOptions.HealthInterval
	opts           PeerOptions

	mu          sync.Mutex // guards the fields below and the state of the backends
	services    []serviceWatch
	backends    []*backend
	candidates  []Candidate   // scratch space for chooseBackendLocked
	healthTimer *na.Op        // nil if the timer is not running
	lastCall    time.Duration // time of the last call
}

// A serviceWatch is one of the services of a Peer, together with its current addresses.
type serviceWatch struct {
	text  string  // service as passed to PeerWith
	fixed hg.Addr // address of a service that needs no resolution; in that case w is nil
	w     *addrWatch
	addrs *[]hg.Addr // result of w from which the backends were last built
}

// PeerOptions configures how a Peer resolves its addresses and chooses among them. The zero value
// is ready to use.
type PeerOptions struct {
	// Resolver resolves each service to addresses. If nil, host names in tcp and udp addresses are
	// looked up in DNS and other addresses are used unchanged. Lookups use Config.TCP.Resolver if
	// set, then the resolver in the options of a plugin in Config.HG.NA.Plugins, then
	// net.DefaultResolver.
	//
	// For example, "tcp://kv.example:9000" resolves to every address of kv.example, with port 9000,
	// in an order that differs between processes. If a host has both IPv4 and IPv6 addresses, each
	// address of the family preferred by the resolver counts as one server. As in RFC 8305, an
	// address of the other family is dialed as a fallback 250 ms later, or as soon as the first
	// attempt fails.
	Resolver Resolver
	// Balancer chooses the address for each attempt. If nil, Config.Balancer is used.
	Balancer Balancer
	// ResolveInterval is the time after which Resolver.Watch is called again if it returns before
	// its context is done. If zero, it is 30 seconds. After an address has failed, Watch is called
	// sooner. When there has been no call on the Peer for 4 × ResolveInterval, the context of Watch
	// is canceled. The next call on the Peer starts Watch again.
	ResolveInterval time.Duration
	// HealthInterval is the interval at which addresses are probed, as by Ping, while the Peer is
	// in use. An address is marked as failed if it does not respond within HealthInterval or
	// reports that it is not ready. The minimum is 10 ms. If zero, only failed addresses are
	// probed, before calls use them again.
	HealthInterval time.Duration
}

// minHealth is the minimum HealthInterval. If it were shorter, probes would be a significant part
// of the load.
const minHealth = 10 * time.Millisecond

// Peer returns a Peer for the service at addrs, which are listed in order of preference. It uses
// the default PeerOptions; see PeerWith. Each call uses the first healthy address or, if
// Config.Balancer is set, the one that it chooses. Peer blocks until host names are resolved or ctx
// is done. It does not dial. If no server is running, the first call or Ping fails. A Peer is safe
// for concurrent use, is meant to be reused, and does not need to be closed.
func (n *Node) Peer(ctx context.Context, addrs ...string) (Peer, error) {
	return n.PeerWith(ctx, PeerOptions{}, addrs...)
}

// PeerWith is like Peer but uses the given options. It blocks until the Resolver delivers its first
// result or ctx is done, and does not dial. Calls use the Resolver's latest result. An address that
// is no longer in the result receives no new calls, but calls already in flight to it continue.
//
// An address is marked as failed if it is unreachable, if its connection is lost, if a call to it
// exceeds its deadline or RetryPolicy.ProgressTimeout, or if it refuses a request because it is not
// ready. Calls then avoid the address for a pause of 0.5 to 1 s, which doubles up to 30 s while the
// address keeps failing. Once the address responds to a probe after the pause, a single trial call
// is sent to it, and another one if the trial takes longer than the pause. If a trial succeeds, the
// address is used again. If all addresses have failed, calls use the one that failed least
// recently. A retry prefers a healthy address that the call has not tried yet.
//
// Calls in flight to a process that freezes fail after Config.PeerTimeout, and may be repeated by
// Retry.
//
// A Peer uses at most the first 1,024 addresses. Addresses whose host cannot be found are omitted.
// PeerWith fails if no address is left. If an address does not match the transport of n, the error
// matches ErrInvalid or hg.ErrUnsupported. The fate of every error of Peer and PeerWith is NotRun.
func (n *Node) PeerWith(ctx context.Context, o PeerOptions, addrs ...string) (Peer, error) {
	if err := o.check(addrs); err != nil {
		return Peer{}, newPeerError(err)
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
			return Peer{}, newPeerError(err)
		default:
			errs = append(errs, err)
			if s.w != nil {
				p.services = append(p.services, s) // a later lookup may succeed
			}
		}
	}
	p.updateBackendsLocked()
	switch {
	case len(p.backends) > 0:
	case len(errs) > 0:
		return Peer{}, newPeerError(errors.Join(errs...))
	default:
		return Peer{}, newPeerError(p.noBackendErrorLocked())
	}
	if len(p.services) == 1 && p.services[0].w == nil && p.healthInterval == 0 {
		p.single = p.backends[0]
	}
	if len(n.contexts) > 1 {
		p.i = int(maphash.String(seed, p.backends[0].addr.String()) % uint64(len(n.contexts)))
	}
	return Peer{p}, nil
}

// check returns an error that describes what is invalid in o, or that addrs is empty.
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
	return fmt.Errorf("%s: %w", what, hg.ErrInvalid)
}

// A peerError is an error of Node.Peer without a fate of its own. It wraps an hg.Error with the fate
// NotRun, because a call to the Peer was not sent.
type peerError struct {
	text string
	err  hg.Error
}

// Error implements error.
func (e *peerError) Error() string { return e.text }

// Unwrap returns the cause, with the fate NotRun.
func (e *peerError) Unwrap() error { return &e.err }

// newPeerError returns the error of Node.Peer for err. Its fate is NotRun.
func newPeerError(err error) error {
	wrapped := errtext.Wrap("qs: peer", err)
	if FateOf(err) == NotRun {
		return wrapped
	}
	return &peerError{wrapped.Error(), hg.Error{Op: "lookup", Fate: NotRun, Err: err}}
}

// findService starts watching the service text and waits for its first addresses.
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

// followServicesLocked rebuilds the list of backends if a Resolver has returned new addresses. It
// also starts a new watch for each service whose watch has ended. The caller must hold p.mu.
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

// updateBackendsLocked rebuilds the list of backends from the first maxAddrs of the services'
// addresses. Backends that were already in the list keep their state. The caller must hold p.mu.
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

// noBackendErrorLocked returns the error for a call that has no address to use. The caller must
// hold p.mu.
func (p *peer) noBackendErrorLocked() error {
	text := "the service " + p.serviceTexts() + " has no address"
	for i := range p.services {
		if w := p.services[i].w; w != nil && w.lastError() != nil {
			text += ": " + w.lastError().Error()
		}
	}
	return na.WithText(hg.ErrUnreachable, text)
}

// serviceTexts returns the services as passed to PeerWith, separated by commas.
func (p *peer) serviceTexts() string {
	var all []string
	for i := range p.services {
		all = append(all, p.services[i].text)
	}
	return strings.Join(all, ",")
}

// Ping sends a ping to the node at p.Addr and returns the round-trip time. It blocks until the
// response arrives or ctx is done. It establishes a connection if there is none.
//
//   - A node responds even if it is not ready, is draining, or has reached its limits on requests.
//     A ping uses no worker and no envelope, and is not subject to the authorizer.
//   - Errors match ErrUnreachable if no process is listening, ErrTimeout or ErrCanceled if ctx is
//     done, ErrPeerLost if the connection is lost, and ErrInvalid if p is the zero Peer.
//   - Ping does not affect which addresses calls use. A Peer probes failed addresses by itself (see
//     PeerOptions.HealthInterval).
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

// errNoPeer returns the error for a call of the named method on the zero Peer.
func errNoPeer(method string) error {
	return &hg.Error{Op: "forward", RPC: method, Fate: NotRun,
		Err: na.WithText(ErrInvalid, "zero Peer: use Node.Peer")}
}

// Addr returns the address that the next attempt is likely to use. It returns the zero Addr if p is
// the zero Peer or has no address.
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

// Node returns the Node that p belongs to, or nil if p is the zero Peer.
func (p Peer) Node() *Node {
	if p.p == nil {
		return nil
	}
	return p.p.n
}

// Identity returns the identity of the process at p.Addr: the transport and, with TLS, the verified
// certificates. ok is false if there is no connection; use Ping to establish one. Identity does not
// block.
func (p Peer) Identity() (id na.Identity, ok bool) {
	if p.p == nil {
		return na.Identity{}, false
	}
	return p.p.n.contexts[p.p.i].NA().Identity(p.Addr())
}

// String returns the services of p, separated by commas, as they were passed to PeerWith or as
// addresses.
func (p Peer) String() string {
	switch {
	case p.p == nil:
		return ""
	case p.p.single != nil:
		return p.p.single.addr.Label()
	}
	return p.p.serviceTexts()
}

// A backend is an address of a Peer together with its state. The state survives changes to the list
// of addresses. Calls do not wait for a failed address.
//
// A backend is in state up until an attempt fails. It is then in state failing for the duration of
// a pause. The first call of the Peer after the pause sends a probe, which makes the state probing.
// If there is no response, or the node is not ready, the backend returns to failing with a longer
// pause. After a response it is ready. The next attempt is a trial, during which the state is
// trying. If the trial fails, the backend returns to failing with a longer pause. If the trial
// takes longer than the pause, the backend is ready again and the pause is doubled. In any state, a
// response to an attempt makes the backend up.
//
// An attempt that began before the last change between up and failing does not change the state.
// Calls to a frozen process fail at about the same time, and therefore count as a single failure.
type backend struct {
	addr       hg.Addr
	inFlight   int           // number of attempts in flight to this address
	lent       int64         // number of bytes in the Sources and Sinks of the attempts in flight
	latency    time.Duration // moving average of the duration of attempts
	latencyAt  time.Duration // time at which latency was last updated
	answeredAt time.Duration // time of the last response
	probing    bool          // a probe sent because of HealthInterval is in flight
	state      backendState
	generation int           // number of changes between up and failing
	failedAt   time.Duration // time of the last failure
	pause      time.Duration // length of the current or last pause
	pauseEnd   time.Duration // end of the pause or, while trying, time at which the next trial may start
}

// A backendState is one of the states that are described at backend.
type backendState uint8

const (
	backendUp backendState = iota
	backendFailing
	backendProbing
	backendReady
	backendTrying
)
