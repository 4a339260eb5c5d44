package debug

import (
	"expvar"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A Page is an http.Handler that serves a web page about the state of a program's nodes, as well as
// health probes. Because its links are relative, it may be mounted at any path, with or without a
// trailing slash:
//
//	page := new(debug.Page)
//	page.Attach(&cfg) // before qs.Open, so that completed calls are counted; otherwise use debug.New(node)
//	http.Handle("/debug/qs/", page)
//
// Below that path, /healthz reports whether all nodes are open and /readyz whether they are ready,
// with status 200 or 503. The zero value shows no nodes. The exported fields must be set before the
// Page is used. Its methods are safe for concurrent use. Unless Guard is set, anyone who can reach
// the page can read it.
type Page struct {
	// Guard, if not nil, is called for each request except probes, and reports whether to serve the
	// page. If it returns false, it must have written the response.
	Guard func(w http.ResponseWriter, r *http.Request) bool
	// TraceURL, if not nil, returns the URL at which a trace can be viewed, or "" if there is none.
	// id consists of 32 hexadecimal digits. Only http, https and relative URLs are used as links.
	TraceURL func(id string) string
	// StalledAfter is the time after which calls in flight, streams that their caller does not
	// read, and messages that wait for an envelope of the peer are reported in Snapshot.Causes. If
	// zero, it is 5 seconds.
	StalledAfter time.Duration

	collector   collector
	lost        lostPeers
	isObserving atomic.Bool
	sampledSlot atomic.Int64 // number of the newest slot with a sample, plus one; 0 if there is no sample
	beginOnce   sync.Once
	begun       time.Time                           // start of the page's clock, set by elapsedTime
	elapsed     func(since time.Time) time.Duration // set by tests; nil means time.Since

	mu      sync.Mutex // guards the fields below
	sources []source
	// faultContexts holds, for each source, the number of contexts whose lost peers are reported to
	// the page.
	faultContexts map[source]int
	streamMarks   map[streamKey]streamMark // progress of each stream at the last Snapshot
	first         processSample
	samples       slotRing[processSample]
	recentCauses  map[string]recentCause // keyed by Cause.holdKey
}

// A source provides the state of a class to the page. classSource implements it; tests use other
// implementations.
type source interface {
	name() string              // name of the process, or ""
	isOpen() bool              // whether any context is open
	isReady() bool             // readiness, as reported by hg/health
	limitOf(method string) int // limit on concurrent handlers of a method, or 0
	contexts() []contextData   // current state of the contexts
	// countUnused calls each for every handle of the program that is neither closed nor in use. It
	// returns the number of registered memory regions that are neither closed nor in use.
	countUnused(each func(method string, peer hg.Addr)) (regions int64)
	listMemory(most int) []memoryUse // returns at most most registered memory regions
	// subscribeFaults arranges for lost to be called for each peer lost by the contexts with index
	// n and higher. It returns the number of contexts.
	subscribeFaults(n int, lost func(peer hg.Addr, why error)) int
	isConnected(peer hg.Addr) bool // whether the session to which peer is bound is up
	// identityOf returns the name in a peer's certificate and whether its session is encrypted.
	identityOf(context int, peer hg.Addr) (verified string, secure bool)
}

// A memoryUse describes a registered memory region and its last user.
type memoryUse struct {
	size   int64
	access string // access granted to peers, from na.Access.String
	user   uint64 // session of the peer that accessed it last (hg.Addr.Session), or 0
}

// A contextData holds the state of a context when a Snapshot is taken.
type contextData struct {
	inspect.Gauges
	open  bool
	stats hg.Stats
	calls []inspect.Call
}

// New returns a Page about an open node. It shows the node's peers, calls in flight and causes, and
// serves probes. Completed calls are counted only if they are passed to Observe. To count them, use
// Attach before qs.Open instead of New.
func New(node *qs.Node) *Page {
	p := new(Page)
	p.Show(node.HG().Class())
	return p
}

// Show adds a class to the page. All of its contexts are shown, including those created later.
// Adding a class again has no effect.
func (p *Page) Show(class *hg.Class) { p.addClass(class) }

// addClass adds class and reports whether it was not already on the page.
func (p *Page) addClass(class *hg.Class) bool {
	now := p.elapsedTime()
	p.mu.Lock()
	fresh := !slices.Contains(p.sources, source(classSource{class}))
	if fresh {
		p.sources = append(p.sources, classSource{class})
	}
	p.mu.Unlock()
	if fresh {
		for _, c := range class.Contexts() {
			c.Calls() // starts recording the age of requests in the class
		}
		p.takeSample(now)
	}
	return fresh
}

// Attach makes the page show every node opened with cfg and count its calls. If cfg already has an
// Observe function, it is still called. A second Attach of the same page has no effect.
func (p *Page) Attach(cfg *qs.Config) {
	var twice atomic.Bool // set if another Attach of this page already counts the calls
	cfg.HG.Observe = inspect.Observers(cfg.HG.Observe, func(e *inspect.Event) {
		if !twice.Load() {
			p.Observe(e)
		}
	})
	hghook.OnOpen(&cfg.HG, func(class any) {
		if !p.addClass(class.(*hg.Class)) {
			twice.Store(true)
		}
	})
}

// Observe adds the completed call, request or transfer e to the statistics of methods, peers and
// errors. It may be set as hg.Config.Observe or called from that function. It does not block.
func (p *Page) Observe(e *inspect.Event) {
	if !p.isObserving.Load() {
		p.isObserving.Store(true)
	}
	now := p.elapsedTime()
	p.takeSample(now)
	p.collector.countEvent(e, now)
	p.lost.countEvent(e, now, p.isConnected)
}

// elapsedTime returns the time on the page's clock, which starts at 0 with the first call.
func (p *Page) elapsedTime() time.Duration {
	p.beginOnce.Do(func() { p.begun = time.Now() })
	if p.elapsed != nil {
		return p.elapsed(p.begun)
	}
	return time.Since(p.begun)
}

// isConnected reports whether the session to which peer is bound is up.
func (p *Page) isConnected(peer hg.Addr) bool {
	return slices.ContainsFunc(p.allSources(), func(s source) bool { return s.isConnected(peer) })
}

// subscribeFaults subscribes to reports of lost peers in contexts created since its last call.
func (p *Page) subscribeFaults() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.sources {
		if p.faultContexts == nil {
			p.faultContexts = map[source]int{}
		}
		p.faultContexts[s] = s.subscribeFaults(p.faultContexts[s], func(peer hg.Addr, why error) { p.lost.addLoss(peer, why, p.elapsedTime()) })
	}
}

// Publish publishes the Snapshot of the zero Query as an expvar. It panics if the name is already
// in use.
func (p *Page) Publish(name string) {
	expvar.Publish(name, expvar.Func(func() any { return p.Snapshot(Query{}) }))
}

// allSources returns a copy of the list of sources.
func (p *Page) allSources() []source {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.sources)
}

// A classSource implements source for a class.
type classSource struct{ class *hg.Class }

func (c classSource) name() string { return c.class.NA().Config().Name }

func (c classSource) isOpen() bool {
	return slices.ContainsFunc(c.class.Contexts(), func(c *hg.Context) bool { return !c.NA().Closed() })
}

func (c classSource) isReady() bool { return hghook.IsReady(c.class) }

func (c classSource) limitOf(method string) int {
	rpc, _ := c.class.Registered(method)
	return rpc.MaxActive
}

func (c classSource) contexts() (all []contextData) {
	gauges := c.class.Gauges()
	for i, hctx := range c.class.Contexts() {
		if i < len(gauges) { // Gauges does not include a context created after it was called
			all = append(all, contextData{gauges[i], !hctx.NA().Closed(), hctx.Stats(), hctx.Calls()})
		}
	}
	return all
}

func (c classSource) countUnused(each func(method string, peer hg.Addr)) (regions int64) {
	for i, hctx := range c.class.Contexts() {
		if i == 0 { // only for the first context, because each one reports the regions of the entire class
			regions = hctx.Stats().NA.Regions
		}
		hghook.IdleHandles(hctx, func(h inspect.Call) {
			if !inspect.IsBuiltIn(h.RPC) { // skip the handles that streams keep for built-in RPCs
				each(h.RPC, h.Peer)
			}
		})
	}
	return regions
}

func (c classSource) listMemory(most int) (all []memoryUse) {
	for _, m := range c.class.NA().Registered(most) {
		all = append(all, memoryUse{m.Len, m.Access.String(), m.User})
	}
	return all
}

func (c classSource) subscribeFaults(n int, lost func(peer hg.Addr, why error)) int {
	all := c.class.Contexts()
	for _, hctx := range all[min(n, len(all)):] {
		hctx.NA().OnFault(lost)
	}
	return len(all)
}

func (c classSource) isConnected(peer hg.Addr) bool {
	return slices.ContainsFunc(c.class.Contexts(), func(c *hg.Context) bool { return c.NA().Connected(peer) })
}

func (c classSource) identityOf(context int, peer hg.Addr) (verified string, secure bool) {
	all := c.class.Contexts()
	if context >= len(all) {
		return "", false
	}
	id, _ := all[context].NA().Identity(peer)
	return id.Name, id.Secure
}
