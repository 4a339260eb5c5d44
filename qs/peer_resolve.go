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

// A Resolver finds the addresses of a service. It can be compared with ==: a pointer, for example. A Node runs one Watch for each
// service, on a goroutine of its own (in the simulator, in a coroutine), while a Peer of it is used.
type Resolver interface {
	// Watch calls update with all addresses of a service, which is a text that PeerWith was given, in order of preference, soon and at
	// each change, until ctx ends. It makes one call of update at a time. An error keeps the last addresses. A Watch that returns
	// before is called again after PeerOptions.ResolveInterval, and sooner when an address has failed, or there was an error: but not twice
	// within a second. Of more than 1,024 addresses the last are left out, which is logged.
	Watch(ctx context.Context, service string, update func(addrs []string, err error)) error
}

// dnsResolver is the Resolver that looks up hosts: "tcp://kv.example:9000" is every address of kv.example, with that port. If a host has
// addresses of both families, those of the family that the resolver prefers are taken for its servers, and each has addresses of the other
// family that are dialed when it does not answer. Each process has an order of its own for them.
type dnsResolver struct{ n *Node }

// A hostResolver is a plugin whose options have a resolver of hosts; nil is the system's.
type hostResolver interface{ HostResolver() tcp.Resolver }

// hostResolver returns what n looks up hosts with.
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

// splitHost splits the text of an address with the name of a host; ok is false for any other.
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

// maxAltAddrs is how many addresses one address of a Peer stands for, as package inet has it.
const maxAltAddrs = 8

// Watch implements Resolver. It asks once.
func (d dnsResolver) Watch(ctx context.Context, service string, update func(addrs []string, err error)) error {
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
		return cmp.Or(cmp.Compare(maphash.Comparable(seed, a[0]), maphash.Comparable(seed, b[0])), a[0].Compare(b[0]))
	})
	var addrs []string
	for _, group := range groups {
		var all []string
		for _, ip := range group[:min(len(group), maxAltAddrs)] {
			all = append(all, net.JoinHostPort(ip.String(), port))
		}
		addrs = append(addrs, scheme+"://"+host+"@"+strings.Join(all, "|")) // whose certificate must carry host
	}
	update(addrs, nil)
	return nil
}

// A addrWatch keeps the addresses of a service, on a goroutine of its own while a Peer of it makes calls.
//
//	a call ─► running? ─ no ─► Watch ◄─ ResolveInterval, or an address has failed ─ pause
//	                             ├─ update ─► found: Peers look at their next call │
//	                             └─ returns ───────────────────────────────────────┘   no call for idleLooks × ResolveInterval ─► over
type addrWatch struct {
	n    *Node
	key  watchKey
	ctx  context.Context // ends with the Node, or w
	stop context.CancelFunc

	found         atomic.Pointer[[]hg.Addr] // what was said last
	lastCall      atomic.Int64              // when there was a call, by the Node's clock
	refresh       atomic.Int64              // the shortest that a Peer wants
	waiters       atomic.Int32              // for the first answer
	ended         atomic.Bool               // it does not run any more
	warnedTooMany atomic.Bool               // more addresses than a Peer can have were found
	refreshNow    chan struct{}             // has an element: an address has failed
	firstAnswer   chan struct{}             // closed when there was an answer

	mu       sync.Mutex // guards the fields below
	err      error      // of the last answer
	answered bool       // told is closed
}

type watchKey struct {
	resolver Resolver
	service  string
}

const (
	defaultResolveInterval = 30 * time.Second
	// idleIntervals is how many times ResolveInterval a watch lasts without calls.
	idleIntervals = 4
	// minWatchInterval is the least from one Watch to the next.
	minWatchInterval = time.Second
	// maxWatches bounds the services that are watched at once.
	maxWatches = 1024
)

// watchService returns the watch of a service, which has been begun if there was none.
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
		return nil, na.WithText(hg.ErrAgain, fmt.Sprintf("%d services are watched, there may be no more", maxWatches))
	default:
		w = &addrWatch{n: n, key: key, refreshNow: make(chan struct{}, 1), firstAnswer: make(chan struct{})}
		w.ctx, w.stop = context.WithCancel(n.drainCtx)
		w.refresh.Store(int64(refresh))
		n.watches[key] = w
		defer n.spawn(w.run)
	}
	w.lastCall.Store(int64(n.now()))
	return w, nil
}

// run is the goroutine of w.
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

// endIfUnused ends w when there were no calls.
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

// end ends w; a later call begins another one.
func (w *addrWatch) end() {
	w.stop()
	w.n.mu.Lock()
	if w.ended.Store(true); w.n.watches[w.key] == w {
		delete(w.n.watches, w.key)
	}
	w.n.mu.Unlock()
	w.endFirstWait(hg.ErrClosed)
}

// waitFirst waits for the first answer.
func (w *addrWatch) waitFirst(ctx context.Context) error {
	w.waiters.Add(1)
	defer w.waiters.Add(-1)
	if err := w.n.awaitDone(ctx, 0, w.firstAnswer); err != nil {
		return fmt.Errorf("no answer about %s: %w", w.key.service, err)
	}
	return w.lastError()
}

// pause waits until it is time for the next Watch; the last one was begun at some time.
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

// refreshSoon has the addresses looked up soon: one has failed.
func (w *addrWatch) refreshSoon() {
	select {
	case w.refreshNow <- struct{}{}:
	default:
	}
}

// update takes in what a Resolver says.
func (w *addrWatch) update(addrs []string, err error) {
	var found []hg.Addr
	addrs = dedupe(addrs)
	if many := len(addrs); many > maxAddrs {
		addrs = addrs[:maxAddrs]
		if !w.warnedTooMany.Swap(true) {
			w.n.logger().Warn("a Resolver has found more addresses than a Peer can have: the last are left out",
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

// dedupe returns all without those that came before.
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

// endFirstWait ends the wait for the first answer.
func (w *addrWatch) endFirstWait(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
	if !w.answered {
		w.answered = true
		close(w.firstAnswer)
	}
}

// lookupAddrs returns the addresses that texts name. One that cannot be found is left out, unless none is left.
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

var seed = maphash.MakeSeed() // which context serves a peer, and in which order addresses are tried; it does not matter which

// maxAddrs bounds the addresses of a Peer, and those that a Resolver finds for one service: each call looks at all of them.
const maxAddrs = 1024
