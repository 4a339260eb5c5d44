package qs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/errtext"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A Node connects a process to a network. It serves methods and calls those of other nodes. Its
// methods are safe for concurrent use.
//
// After Open, a program registers its handlers and calls Serve. A program that only makes calls
// need not call Serve. When the context of Serve is done, the node drains: it refuses new calls and
// waits for those in flight, at most for Config.ShutdownTimeout. Then Serve returns.
type Node struct {
	cfg      Config
	class    *hg.Class
	contexts []*hg.Context // one per event loop; see Config.Contexts
	hctx     *hg.Context   // the first of contexts
	workers  workers
	clients  clientShares

	known   sync.Map      // method definitions that have been used: *method to hg.ID
	budgets sync.Map      // retry budgets: *RetryPolicy to *retryBudget
	idle    []handleCache // idle handles, one cache per context

	idleDrivers []idleDriver // one per context

	// drainCtx is the result of Draining. It is canceled when the node begins to drain or is
	// closed.
	drainCtx       context.Context
	cancelDrainCtx context.CancelFunc

	served       atomic.Bool       // Serve has been called
	ending       atomic.Bool       // handles are no longer cached
	mu           sync.Mutex        // guards the fields below and the registration of methods
	defined      map[string]string // description of the first definition used, by method name
	closed       bool
	probes       map[*na.Op]struct{}     // address probes in flight
	healthTimers map[*na.Op]struct{}     // timers of PeerOptions.HealthInterval
	watches      map[watchKey]*addrWatch // service watches in progress
}

// openError returns err, the error of a lower package, as the error of Open.
func openError(err error) error {
	if strings.HasPrefix(errtext.Cause(err), "open ") {
		return errtext.Wrap("qs", err)
	}
	return errtext.Wrap("qs: open", err)
}

// Open opens a node at addr. A node at "tcp://" only makes calls, while a node at "tcp://host:port"
// also serves. If the port is 0, the system chooses one, which Node.Addr reports. Open resolves the
// host of addr and binds the port. It does not dial any peer, and starts no goroutine that runs
// code of the program. Because a node keeps its connections, open one node for the lifetime of the
// program. Close it with Close or Shutdown, or by canceling the context of Serve.
//
// Incoming requests are queued until the program runs Serve or makes a call with this node, so that
// handlers can be registered first.
//
// The error matches
//
//   - ErrInvalid: an invalid Config or address. The text names all invalid fields of Config. Only if
//     there are none does it name all invalid fields of HG and HG.NA, which also validate
//     PeerTimeout, IdleTimeout and Name.
//   - hg.ErrUnsupported: no plugin has the scheme,
//   - ErrNoEntry: the host was not found,
//   - na.ErrAddrInUse, and syscall.EADDRINUSE: the port is in use,
//   - ErrPermission: udp beyond loopback without TLS.
func Open(addr string, cfg Config) (*Node, error) {
	cfg, err := cfg.withDefaults(addr)
	if err != nil {
		return nil, err
	}
	n := &Node{
		cfg: cfg, idle: make([]handleCache, cfg.Contexts), idleDrivers: make([]idleDriver, cfg.Contexts),
		defined: map[string]string{},
		probes:  map[*na.Op]struct{}{}, healthTimers: map[*na.Op]struct{}{},
		watches: map[watchKey]*addrWatch{},
	}
	n.drainCtx, n.cancelDrainCtx = context.WithCancel(context.Background())
	n.clients = clientShares{n: n, limits: cfg.ClientLimits, holders: map[hg.Request]string{},
		shares: map[string]*clientShare{}}
	n.workers.init(n)
	cfg.HG.Dispatch = n.workers.dispatch
	hghook.DispatchStreams(&cfg.HG, func(r any) { n.workers.dispatchStreams(*r.(*hg.Request)) })
	if cfg.Authorize != nil {
		cfg.HG.Authorize = n.authorize
	}
	if n.class, err = hg.Open(addr, cfg.HG); err != nil {
		return nil, openError(err)
	}
	for range cfg.Contexts {
		var hctx *hg.Context
		if hctx, err = n.class.NewContext(); err != nil {
			return nil, errors.Join(openError(err), n.class.Close())
		}
		n.contexts = append(n.contexts, hctx)
	}
	n.hctx = n.contexts[0]
	for _, hctx := range n.contexts {
		n.workers.addPoller(hctx)
	}
	setTLSLogger(cfg.TLS, cfg.HG.Logger)
	setTLSLogger(cfg.TCP.TLS, cfg.HG.Logger)
	if cfg.Inspect {
		if err = n.class.ServeGauges(); err != nil {
			return nil, errors.Join(openError(err), n.class.Close())
		}
	}
	return n, nil
}

// Addr returns the address at which peers reach n. Its string form is accepted by Peer. If the node
// listens on all interfaces, the address contains the IP address of the default route's interface
// or the one set by tcp.Options.Advertise.
func (n *Node) Addr() hg.Addr { return n.class.Addr() }

// HG returns the node's context of package hg, for calls with callbacks. If there are several, it
// returns the first. Serve runs one callback at a time. A callback may block in calls and in
// WaitFor, which run other callbacks in the meantime. A callback that blocks on a channel may
// deadlock.
func (n *Node) HG() *hg.Context { return n.hctx }

// SetReady sets whether n reports itself as ready, which is the default, in response to health
// probes and to "hg/health". A draining node is never ready. A node that is not ready still handles
// calls, but orchestrators and clients that probe (PeerOptions.HealthInterval) use other nodes.
func (n *Node) SetReady(ready bool) { n.class.SetReady(ready) }

// Serve serves the methods of n. It blocks until ctx is done or n is closed. For each context of n
// it starts two goroutines to drive it, one of them on standby. They run Inline and short handlers,
// and workers run the others. In the simulator, the calling goroutine drives n. When ctx is done,
// Serve shuts n down like Shutdown, within Config.ShutdownTimeout. Use a context from
// signal.NotifyContext to stop on SIGTERM. Serve may be called only once. A second call returns an
// error that matches ErrInvalid.
//
// Serve returns nil if all calls completed or if n was closed by Shutdown or Close. Otherwise it
// returns a *hg.ShutdownError that names the handlers that were canceled and the peers that have
// not acknowledged all data. With several Contexts, calls to n's own address require a running
// Serve.
func (n *Node) Serve(ctx context.Context) error {
	if n.served.Swap(true) {
		return na.WithText(hg.ErrInvalid, "qs: Serve called twice on one Node")
	}
	var err error
	if n.hctx.NA().Scheduled() {
		err = n.hctx.NA().Upper().Loop().Drive(ctx, nil, nil)
	} else {
		ends := make(chan error, 2*len(n.contexts))
		for _, hctx := range n.contexts {
			n.driveContext(ctx, hctx, ends)
			n.driveContext(ctx, hctx, ends)
		}
		err = <-ends // when one returns, all do
	}
	if err != nil && ctx.Err() != nil {
		return n.Shutdown(context.Background())
	}
	if errors.Is(err, hg.ErrClosed) {
		return nil
	}
	return err
}

// driveContext starts a goroutine that drives hctx until ctx is done or hctx is closed, and then
// sends the error to ends. If a handler or an authorizer calls runtime.Goexit, or a stream handler
// blocks the goroutine, another goroutine replaces it.
func (n *Node) driveContext(ctx context.Context, hctx *hg.Context, ends chan<- error) {
	spawned := n.workers.handlers.Spawn(func() {
		l := hctx.NA().Upper().Loop()
		var replaced atomic.Bool
		own, stop := context.WithCancel(ctx)
		defer stop()
		replace := func() {
			if !replaced.Swap(true) {
				n.driveContext(ctx, hctx, ends)
			}
		}
		defer replace()
		keep := func() { // called when a handler blocks this goroutine
			replace()
			stop() // after replace, because otherwise the error of this Drive would be sent to ends
			l.HandOn()
		}
		err := l.Drive(own, n.workers.inline[hctx.ID()], keep)
		if !replaced.Swap(true) {
			ends <- err
		}
	})
	if !spawned {
		ends <- hg.ErrClosed
	}
}

// alwaysFalse is a condition for WaitFor that is never true.
func alwaysFalse() bool { return false }

// Shutdown shuts n down gracefully. It refuses new calls with ErrDraining and waits for calls in
// flight until ctx is done, or for Config.ShutdownTimeout if ctx has no deadline. Then it cancels
// the remaining calls and closes n. It returns at most 1 s after ctx is done. Close, in contrast,
// does not wait for calls.
//
// Shutdown returns nil if no call was canceled. Otherwise it returns a *hg.ShutdownError that names
// the canceled calls. In a handler or callback, where it would deadlock, it has no effect and
// returns an error that matches na.ErrBusy. A running or later Serve returns nil.
func (n *Node) Shutdown(ctx context.Context) error {
	if _, bounded := ctx.Deadline(); !bounded {
		var stop context.CancelFunc
		limit := max(n.cfg.ShutdownTimeout, 0)
		ctx, stop = n.withTimeout(context.WithValue(ctx, hghook.ShutdownTimeoutKey{}, limit), limit)
		defer stop()
	}
	if n.isInside() {
		return fmt.Errorf("qs: Shutdown called in a handler or callback; call it on another goroutine, or use Close: %w",
			na.ErrBusy)
	}
	n.ending.Store(true)
	n.dropHandles()
	err := n.class.Shutdown(ctx)
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	n.workers.end()
	if err == nil {
		n.workers.wait()
	}
	return err
}

// closeTime is the maximum time for which Close waits for callbacks.
const closeTime = time.Second

// isInside reports whether it was called from within a handler or callback of n.
func (n *Node) isInside() bool {
	return slices.ContainsFunc(n.contexts,
		func(hctx *hg.Context) bool { return hctx.NA().Upper().Inside() })
}

// Close closes n immediately. Calls in flight fail with ErrClosed, and the contexts of handlers are
// canceled. Close waits for up to one second for the callbacks of these calls, but does not wait
// for handlers. When called from a handler or callback, it does not wait at all. A second Close has
// no effect. A later Serve returns nil, and a running one returns nil once the handlers in its
// goroutines have returned.
func (n *Node) Close() error {
	n.mu.Lock()
	was := n.closed
	n.closed = true
	n.mu.Unlock()
	n.ending.Store(true)
	if was {
		return nil
	}
	n.dropHandles()
	err := n.class.Close()
	if !n.isInside() { // otherwise Close would wait for its own caller
		for _, hctx := range n.contexts {
			_ = hctx.WaitFor(context.Background(), closeTime, alwaysFalse)
		}
	}
	n.workers.end()
	return err
}

// spawn runs f in a new goroutine or, in the simulator, in a new coroutine.
func (n *Node) spawn(f func()) { n.hctx.NA().Spawn(f) }

// sleep waits for d, which is virtual time in the simulator. If ctx is done first, it returns the
// cause of ctx. Unlike hg.Context.Sleep, it does not drive the context outside the simulator.
func (n *Node) sleep(ctx context.Context, d time.Duration) error {
	if n.hctx.NA().Scheduled() {
		return n.hctx.Sleep(ctx, d)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// withTimeout is like context.WithTimeout, but uses virtual time in the simulator.
func (n *Node) withTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return n.hctx.NA().WithTimeout(ctx, d)
}

// logger returns the node's Logger, or slog.Default() if none is set.
func (n *Node) logger() *slog.Logger {
	if l := n.cfg.HG.Logger; l != nil {
		return l
	}
	return slog.Default()
}

// now returns the current time on the node's clock.
func (n *Node) now() time.Duration { return n.hctx.Now() }

// A handleCache holds idle handles of one context for reuse.
type handleCache struct {
	last atomic.Pointer[hg.Handle] // handle most recently returned; nil if none
	mu   sync.Mutex                // guards h
	h    []*hg.Handle              // other idle handles
}

// dropLast closes the handle in last, if any.
func (k *handleCache) dropLast() {
	if h := k.last.Swap(nil); h != nil {
		_ = h.Close()
	}
}

// maxIdleHandles is the maximum length of handleCache.h.
const maxIdleHandles = 256

// takeHandle returns a handle for a call of id at to through context i, from the cache if possible.
func (n *Node) takeHandle(i int, to hg.Addr, id hg.ID) (*hg.Handle, error) {
	h, err := n.takeIdle(i, to, id)
	if err == nil {
		if err = h.Reset(to, id); err != nil {
			_ = h.Close()
		}
	}
	return h, err
}

// takeIdle returns an idle handle, which may be set to another RPC and address. If there is none,
// it returns a new handle for calls of id at to.
func (n *Node) takeIdle(i int, to hg.Addr, id hg.ID) (*hg.Handle, error) {
	k := &n.idle[i]
	if h := k.last.Swap(nil); h != nil {
		return h, nil
	}
	k.mu.Lock()
	last := len(k.h) - 1
	if last < 0 {
		k.mu.Unlock()
		return n.contexts[i].Create(to, id)
	}
	h := k.h[last]
	k.h = k.h[:last]
	k.mu.Unlock()
	return h, nil
}

// keepHandle releases the output of h and returns h to the cache. The call of h must have
// completed.
func (n *Node) keepHandle(i int, h *hg.Handle) {
	hghook.FreeOutput(h)
	n.keepIdle(i, h)
}

// keepIdle returns h, which must not have an output, to the cache.
func (n *Node) keepIdle(i int, h *hg.Handle) {
	k := &n.idle[i]
	if k.last.CompareAndSwap(nil, h) {
		if n.ending.Load() { // checked after the store, so that either this or dropHandles closes h
			k.dropLast()
		}
		return
	}
	k.mu.Lock()
	// Check ending while holding the lock, so that either this or dropHandles closes h.
	kept := len(k.h) < maxIdleHandles && !n.ending.Load()
	if kept {
		k.h = append(k.h, h)
	}
	k.mu.Unlock()
	if !kept {
		_ = h.Close()
	}
}

// probeAddr returns an error unless the context at address to is driven and ready. It blocks until
// the response arrives or ctx is done.
func (n *Node) probeAddr(ctx context.Context, i int, to hg.Addr) error {
	hctx := n.contexts[i]
	begun := n.now()
	refused := func(err error) error {
		return hghook.EndedBy(ctx, &hg.Error{Op: "probe", Peer: to, Fate: NotRun, Took: n.now() - begun,
			Err: err})
	}
	limit := time.Duration(0)
	if at, ok := ctx.Deadline(); ok {
		left, err := hctx.NA().Until(at)
		if err != nil {
			return refused(err)
		}
		limit = max(left, 1)
	}
	var (
		ended  atomic.Bool
		result error
	)
	op := hctx.NA().NewOp(func(_ *na.Op, r na.Result) {
		result = r.Err
		ended.Store(true)
		hctx.Wake()
	})
	err := hctx.NA().Probe(op, to, limit)
	if err != nil {
		return refused(errors.Unwrap(err))
	}
	if err = hctx.Wait(ctx, ended.Load); ctx.Err() != nil {
		// Otherwise the probe times out on its own, with a more precise error.
		if limit == 0 || n.now()-begun < limit {
			op.Cancel()
		}
		err = hctx.Wait(context.Background(), ended.Load)
	}
	switch {
	case err != nil:
		return refused(err)
	case result != nil:
		return refused(errors.Unwrap(result))
	}
	return nil
}

// dropHandles closes the idle handles, cancels probes and health timers, and cancels drainCtx.
func (n *Node) dropHandles() {
	n.cancelDrainCtx()
	for _, hctx := range n.contexts {
		hctx.Wake() // wakes handlers that wait for Draining with hg.Context.Wait
	}
	n.mu.Lock()
	for op := range n.probes {
		op.Cancel()
	}
	for op := range n.healthTimers {
		op.Cancel()
	}
	n.mu.Unlock()
	for i := range n.idle {
		k := &n.idle[i]
		k.dropLast()
		k.mu.Lock()
		all := k.h
		k.h = nil
		k.mu.Unlock()
		for _, h := range all {
			_ = h.Close()
		}
	}
}

// awaitDone blocks until done is closed or ctx is done. In the simulator, the goroutine that closes
// done must also wake context i.
func (n *Node) awaitDone(ctx context.Context, i int, done <-chan struct{}) error {
	if n.hctx.NA().Scheduled() {
		if err := n.contexts[i].Wait(ctx, func() bool { return isClosed(done) }); err != nil &&
			!isClosed(done) {
			return err
		}
		return nil
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// isClosed reports whether done is closed. It does not block.
func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// jitterOf returns a random duration between d/2 and d.
func (n *Node) jitterOf(d time.Duration) time.Duration {
	var b [8]byte
	n.class.NA().Rand(b[:])
	return d/2 + time.Duration(binary.LittleEndian.Uint64(b[:])%uint64(d/2+1))
}

// runAfter calls f after d in a new goroutine or, in the simulator, in a new coroutine. It does not
// call f if stop is called before d has elapsed. In the simulator, it does not call f if ctx is
// done by then.
func (n *Node) runAfter(ctx context.Context, d time.Duration, f func()) (stop func()) {
	if !n.hctx.NA().Scheduled() {
		t := time.AfterFunc(d, f)
		return func() { t.Stop() }
	}
	ctx, cancel := context.WithCancel(ctx)
	n.spawn(func() {
		if n.sleep(ctx, d) == nil {
			f()
		}
	})
	return cancel
}

// waitDrained blocks until no lent memory is in use, or for closeTime per context. It must be
// called after Close.
func (n *Node) waitDrained() {
	for _, hctx := range n.contexts {
		_ = hctx.WaitFor(context.Background(), closeTime, alwaysFalse)
	}
}
