package qs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/happyeyeballs"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// A Resolver resolves a service to addresses. It must be comparable with ==, for example a pointer.
// A Node runs one Watch per service, on a separate goroutine (in the simulator, in a coroutine),
// while a Peer of the service is in use.
type Resolver interface {
	// Watch calls update with all addresses of a service, in order of preference: soon, and at each
	// change, until ctx is done. service is an argument of PeerWith.
	//
	//   - update must not be called concurrently. An error keeps the last addresses.
	//   - A Watch that returns early is called again after PeerOptions.ResolveInterval. It is
	//     called sooner after an error, or when an address has failed, but at most once per second.
	//   - Only the first 1,024 addresses are used. More are ignored, with a log message.
	Watch(ctx context.Context, service string, update func(addrs []string, err error)) error
}

// dnsResolver is the default Resolver. It looks up hosts: "tcp://kv.example:9000" is every address
// of kv.example with that port. If a host has addresses of both families, each address of the
// preferred family counts as a server, together with addresses of the other family that are dialed
// if it does not answer. Each process has an order of its own for the addresses.
type dnsResolver struct{ n *Node }

// A hostResolver is a plugin with a resolver of hosts in its options; nil means that of the system.
type hostResolver interface{ HostResolver() tcp.Resolver }

// hostResolver returns the resolver with which n looks up hosts.
func (n *Node) hostResolver() tcp.Resolver {
	if r := n.cfg.TCP.Resolver; r != nil {
		return r
	}
	for _, p := range n.cfg.HG.NA.Plugins {
		if h, ok := p.(hostResolver); ok {
			if r := h.HostResolver(); r != nil {
				return r
			}
		}
	}
	return net.DefaultResolver
}

// splitHost splits an address with a host name. ok is false for any other address.
func splitHost(text string) (scheme, host, port string, ok bool) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok || scheme != "tcp" && scheme != "udp" {
		return "", "", "", false
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil || host == "" || strings.Contains(host, "@") {
		return "", "", "", false
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return "", "", "", false
	}
	return scheme, host, port, true
}

// maxAltAddrs is the number of addresses that one address of a Peer may combine, as in package
// inet.
const maxAltAddrs = 8

// Watch implements Resolver. It looks the host up once.
func (d dnsResolver) Watch(
	ctx context.Context, service string, update func(addrs []string, err error),
) error {
	scheme, host, port, ok := splitHost(service)
	if !ok {
		update([]string{service}, nil)
		return nil
	}
	ips, err := d.n.hostResolver().LookupNetIP(ctx, "ip", host)
	if err != nil {
		reason := err.Error()
		if e, ok := errors.AsType[*net.DNSError](err); ok {
			reason = e.Err
		}
		return na.WithText(hg.ErrNoEntry, fmt.Sprintf("host %s was not found: %s", host, reason))
	}
	groups := happyeyeballs.Groups(ips)
	slices.SortFunc(groups, func(a, b []netip.Addr) int {
		return cmp.Or(cmp.Compare(maphash.Comparable(seed, a[0]), maphash.Comparable(seed, b[0])),
			a[0].Compare(b[0]))
	})
	var addrs []string
	for _, group := range groups {
		var all []string
		for _, ip := range group[:min(len(group), maxAltAddrs)] {
			all = append(all, net.JoinHostPort(ip.String(), port))
		}
		// The certificate must be valid for host.
		addrs = append(addrs, scheme+"://"+host+"@"+strings.Join(all, "|"))
	}
	update(addrs, nil)
	return nil
}

// An addrWatch keeps the addresses of a service up to date, on a goroutine of its own, while a Peer
// of the service makes calls.
//
//	a call ─► running? ─ no ─► Watch ◄─ after ResolveInterval, or when an address fails ─ pause
//	                             ├─ update ─► found: Peers look at it at their next call    │
//	                             └─ returns ────────────────────────────────────────────────┘
//	no call for idleIntervals × ResolveInterval ─► ended
type addrWatch struct {
	n    *Node
	key  watchKey
	ctx  context.Context // canceled with the Node, or with the watch
	stop context.CancelFunc

	found    atomic.Pointer[[]hg.Addr] // the last addresses
	lastCall atomic.Int64              // time of the last call, by the Node's clock
	refresh  atomic.Int64              // the shortest ResolveInterval of a Peer
	waiters  atomic.Int32              // number of goroutines that wait for the first answer
	ended    atomic.Bool               // the goroutine has ended
	// warnedTooMany is set after the warning that the Resolver returned more addresses than a Peer
	// can have.
	warnedTooMany atomic.Bool
	refreshNow    chan struct{} // has an element if an address has failed
	firstAnswer   chan struct{} // closed with the first answer

	mu       sync.Mutex // guards the fields below
	err      error      // error of the last answer
	answered bool       // firstAnswer is closed
}

// A watchKey identifies an addrWatch.
type watchKey struct {
	resolver Resolver
	service  string
}

const (
	defaultResolveInterval = 30 * time.Second
	// idleIntervals is the number of ResolveIntervals after which a watch without calls ends.
	idleIntervals = 4
	// minWatchInterval is the least time between the starts of two Watch calls.
	minWatchInterval = time.Second
	// maxWatches limits the services watched at a time.
	maxWatches = 1024
)

// watchService returns the watch of a service, and starts it if there is none.
func (n *Node) watchService(key watchKey, refresh time.Duration) (*addrWatch, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	w := n.watches[key]
	switch {
	case n.ending.Load():
		return nil, hg.ErrClosed
	case w != nil && w.ctx.Err() == nil:
		if int64(refresh) < w.refresh.Load() {
			w.refresh.Store(int64(refresh))
		}
	case len(n.watches) >= maxWatches:
		return nil, na.WithText(hg.ErrAgain,
			fmt.Sprintf("too many watched services: the limit is %d", maxWatches))
	default:
		w = &addrWatch{n: n, key: key, refreshNow: make(chan struct{}, 1),
			firstAnswer: make(chan struct{})}
		w.ctx, w.stop = context.WithCancel(n.drainCtx)
		w.refresh.Store(int64(refresh))
		n.watches[key] = w
		defer n.spawn(w.run)
	}
	w.lastCall.Store(int64(n.now()))
	return w, nil
}

// run calls the Resolver until the watch ends.
func (w *addrWatch) run() {
	defer w.end()
	w.n.spawn(w.endIfUnused)
	for w.ctx.Err() == nil {
		begun := w.n.now()
		err := w.key.resolver.Watch(w.ctx, w.key.service, w.update)
		if err != nil {
			w.update(nil, err)
		}
		w.pause(begun)
	}
}

// endIfUnused ends the watch when there have been no calls for some time.
func (w *addrWatch) endIfUnused() {
	defer w.end()
	for {
		idle := idleIntervals * time.Duration(w.refresh.Load())
		left := time.Duration(w.lastCall.Load()) + idle - w.n.now()
		if w.waiters.Load() > 0 {
			left = idle
		}
		if left <= 0 || w.n.sleep(w.ctx, left) != nil {
			return
		}
	}
}

// end ends the watch. A later call starts another one.
func (w *addrWatch) end() {
	w.stop()
	w.n.mu.Lock()
	if w.ended.Store(true); w.n.watches[w.key] == w {
		delete(w.n.watches, w.key)
	}
	w.n.mu.Unlock()
	w.endFirstWait(hg.ErrClosed)
}

// waitFirst waits for the first answer of the Resolver.
func (w *addrWatch) waitFirst(ctx context.Context) error {
	w.waiters.Add(1)
	defer w.waiters.Add(-1)
	if err := w.n.awaitDone(ctx, 0, w.firstAnswer); err != nil {
		return fmt.Errorf("resolve %s: no result yet: %w", w.key.service, err)
	}
	return w.lastError()
}

// pause waits until it is time for the next Watch. The last one began at begun.
func (w *addrWatch) pause(begun time.Duration) {
	refresh := time.Duration(w.refresh.Load())
	least := begun + min(refresh, minWatchInterval) - w.n.now()
	if w.n.sleep(w.ctx, least) != nil || w.lastError() != nil {
		return
	}
	left := begun + refresh - w.n.now()
	if w.n.hctx.NA().Scheduled() {
		_ = w.n.hctx.WaitFor(w.ctx, max(left, 0), func() bool { return len(w.refreshNow) > 0 })
	} else {
		t := time.NewTimer(left)
		defer t.Stop()
		select {
		case <-t.C:
		case <-w.refreshNow:
		case <-w.ctx.Done():
		}
	}
	select {
	case <-w.refreshNow:
	default:
	}
}

// lastError returns the error of the last answer.
func (w *addrWatch) lastError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// refreshSoon makes run call the Resolver soon, since an address has failed.
func (w *addrWatch) refreshSoon() {
	select {
	case w.refreshNow <- struct{}{}:
	default:
	}
}

// update handles a result of the Resolver. An error keeps the last addresses.
func (w *addrWatch) update(addrs []string, err error) {
	var found []hg.Addr
	addrs = dedupe(addrs)
	if many := len(addrs); many > maxAddrs {
		addrs = addrs[:maxAddrs]
		if !w.warnedTooMany.Swap(true) {
			w.n.logger().Warn("resolver returned more addresses than a Peer can have; using the first",
				"service", w.key.service, "found", many, "most", maxAddrs)
		}
	}
	if err == nil {
		found, err = w.n.lookupAddrs(w.ctx, addrs)
	}
	if w.ctx.Err() != nil {
		return
	}
	if err == nil {
		w.found.Store(&found)
	}
	w.endFirstWait(err)
}

// dedupe returns all without duplicates, in their order.
func dedupe(all []string) (out []string) {
	seen := make(map[string]struct{}, len(all))
	for _, s := range all {
		if _, again := seen[s]; !again {
			seen[s] = struct{}{}
			out = append(out, s)
		}
	}
	return out
}

// endFirstWait records the error of a result, and ends waitFirst.
func (w *addrWatch) endFirstWait(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
	if !w.answered {
		w.answered = true
		close(w.firstAnswer)
	}
}

// lookupAddrs looks up the addresses texts. It omits those that are not found, and fails if none
// is.
func (n *Node) lookupAddrs(ctx context.Context, texts []string) (found []hg.Addr, err error) {
	var errs []error
	for _, text := range texts {
		addr, err := n.hctx.LookupWait(ctx, text)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		found = append(found, addr)
	}
	if len(found) == 0 {
		return nil, errors.Join(errs...)
	}
	return found, nil
}

// seed randomizes which context a Peer uses, and the order of its addresses, for each process.
var seed = maphash.MakeSeed()

// maxAddrs limits the addresses of a Peer, and of one service: each call looks at all of them.
const maxAddrs = 1024
