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

// A Resolver resolves a service to addresses. Its dynamic type must be comparable, for example a
// pointer. While a Peer of a service is in use, the Node runs one Watch for that service in a
// separate goroutine (in the simulator, a coroutine).
type Resolver interface {
	// Watch calls update with all addresses of a service, in order of preference. It makes the
	// first call as soon as possible, and further calls whenever the addresses change, until ctx is
	// done. service is one of the arguments to PeerWith.
	//
	//   - update must not be called concurrently. If err is not nil, the previous addresses stay in
	//     use.
	//   - If Watch returns before ctx is done, it is called again after
	//     PeerOptions.ResolveInterval. After an error, or when an address has failed, it is called
	//     sooner, but at most once per second.
	//   - Only the first 1,024 addresses are used. If there are more, a warning is logged.
	Watch(ctx context.Context, service string, update func(addrs []string, err error)) error
}

// dnsResolver is the default Resolver. It looks up host names: "tcp://kv.example:9000" resolves to
// every address of kv.example, with port 9000. If a host has both IPv4 and IPv6 addresses, each
// address of the preferred family counts as one server and is combined with addresses of the other
// family, which are dialed if the first does not respond. The order of the addresses differs
// between processes.
type dnsResolver struct{ n *Node }

// A hostResolver is a plugin with an option for the host resolver. HostResolver returns nil if the
// option is not set.
type hostResolver interface{ HostResolver() tcp.Resolver }

// hostResolver returns the resolver that n uses to look up host names.
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

// splitHost splits a tcp or udp address that contains a host name. For any other address, ok is
// false.
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

// maxAltAddrs is the maximum number of IP addresses combined into one address of a Peer. It equals
// the limit in package inet.
const maxAltAddrs = 8

// Watch implements Resolver. It looks up the host once and returns.
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
		// The host name is kept, because the server's certificate must be valid for it.
		addrs = append(addrs, scheme+"://"+host+"@"+strings.Join(all, "|"))
	}
	update(addrs, nil)
	return nil
}

// An addrWatch keeps the addresses of a service up to date while Peers of the service make calls.
// Its goroutine calls Watch, and calls it again ResolveInterval after it has returned, or sooner if
// an address fails. Each result is stored in found, which Peers read on their next call. The watch
// ends after idleIntervals × ResolveInterval without a call, and the next call starts a new one.
type addrWatch struct {
	n    *Node
	key  watchKey
	ctx  context.Context // canceled when the Node begins to drain or the watch ends
	stop context.CancelFunc

	found    atomic.Pointer[[]hg.Addr] // addresses in the last result without an error
	lastCall atomic.Int64              // time of the last call on a Peer of the service, from Node.now
	refresh  atomic.Int64              // shortest ResolveInterval of the Peers of the service
	waiters  atomic.Int32              // number of goroutines waiting for the first result
	ended    atomic.Bool               // end was called
	// warnedTooMany is set once a warning has been logged that the Resolver returned more than
	// maxAddrs addresses.
	warnedTooMany atomic.Bool
	refreshNow    chan struct{} // capacity 1; receives a value when an address has failed
	firstAnswer   chan struct{} // closed when the first result arrives

	mu       sync.Mutex // guards the fields below
	err      error      // error of the last result
	answered bool       // firstAnswer has been closed
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
	// minWatchInterval is the minimum time between the starts of two calls to Watch.
	minWatchInterval = time.Second
	// maxWatches is the maximum number of services watched at the same time.
	maxWatches = 1024
)

// watchService returns the watch for a service, starting one if necessary.
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

// run calls Resolver.Watch, with pauses in between, until the watch ends.
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

// endIfUnused ends the watch if there has been no call for idleIntervals × ResolveInterval.
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

// end ends the watch and wakes the goroutines in waitFirst. The next call on a Peer of the service
// starts a new watch.
func (w *addrWatch) end() {
	w.stop()
	w.n.mu.Lock()
	if w.ended.Store(true); w.n.watches[w.key] == w {
		delete(w.n.watches, w.key)
	}
	w.n.mu.Unlock()
	w.endFirstWait(hg.ErrClosed)
}

// waitFirst blocks until the Resolver has returned its first result, and returns the error of that
// result. If ctx is done first, it returns an error.
func (w *addrWatch) waitFirst(ctx context.Context) error {
	w.waiters.Add(1)
	defer w.waiters.Add(-1)
	if err := w.n.awaitDone(ctx, 0, w.firstAnswer); err != nil {
		return fmt.Errorf("resolve %s: no result yet: %w", w.key.service, err)
	}
	return w.lastError()
}

// pause blocks until Watch may be called again. begun is the time of the previous call.
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

// lastError returns the error of the last result.
func (w *addrWatch) lastError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// refreshSoon makes run call Watch again soon, because an address has failed.
func (w *addrWatch) refreshSoon() {
	select {
	case w.refreshNow <- struct{}{}:
	default:
	}
}

// update handles a result of the Resolver. If err is not nil, the previous addresses stay in use.
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

// dedupe returns the elements of all without duplicates, in their original order.
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

// endFirstWait records the error of a result, which may be nil, and wakes the goroutines in
// waitFirst.
func (w *addrWatch) endFirstWait(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
	if !w.answered {
		w.answered = true
		close(w.firstAnswer)
	}
}

// lookupAddrs looks up the addresses in texts. It omits those whose lookup fails. It returns an
// error only if every lookup fails.
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

// seed makes the order of addresses, and the choice of the context for a Peer, differ between
// processes.
var seed = maphash.MakeSeed()

// maxAddrs is the maximum number of addresses of a Peer and of one service. It is limited because
// each call scans all of them.
const maxAddrs = 1024
