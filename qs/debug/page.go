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

// A Page is a web page with the state of a program's nodes, and serves probes. It is an
// http.Handler for any path, with or without a slash at its end, since its links are relative:
//
//	page := new(debug.Page)
//	page.Attach(&cfg) // before qs.Open: calls that end are counted, too; debug.New(node) after it shows the rest
//	http.Handle("/debug/qs/", page)
//
// Below that path are /healthz (a node is open) and /readyz (it is ready), with 200 or 503. The
// zero value shows nothing. Set the exported fields before it is used; its methods may be called
// from any goroutine. Without Guard everybody who can reach it can read it.
type Page struct {
	// Guard, if set, is called for each request but for probes. If it reports false it has answered
	// w, and the page writes nothing.
	Guard func(w http.ResponseWriter, r *http.Request) bool
	// TraceURL, if set, returns the URL of the page that shows a trace, by its id of 32 hexadecimal
	// digits, or "" if there is none. Only http, https and relative URLs become links.
	TraceURL func(id string) string
	// StalledAfter is the age from which on calls that have not ended, streams of which their
	// caller takes nothing, and messages without room at their peer count among the Causes. Zero
	// means 5 s.
	StalledAfter time.Duration

	collector   collector
	lost        lostPeers
	isObserving atomic.Bool
	sampledSlot atomic.Int64 // the number of the newest slot with a sample, and one
	beginOnce   sync.Once
	begun       time.Time                           // set by begin
	elapsed     func(since time.Time) time.Duration // replaced by tests; nil means time.Since

	mu      sync.Mutex // guards the fields below
	sources []source
	// the number of contexts of a source with a subscription to their faults
	faultContexts map[source]int
	streamMarks   map[streamKey]streamMark // the progress of streams at the last Snapshot
	first         processSample
	samples       slotRing[processSample]
	recentCauses  map[string]recentCause // by Cause.holdKey
}

// A source is a class on the page.
type source interface {
	name() string              // the name of the process, empty for none
	isOpen() bool              // whether a context is not closed
	isReady() bool             // the state that hg/health reports
	limitOf(method string) int // handlers of a method that run at once; 0 for no limit of its own
	contexts() []contextData   // of now
	// countUnused calls each for every handle of the program that is not closed and not in use, and
	// returns how many pieces of registered memory are not closed and not in use.
	countUnused(each func(method string, peer hg.Addr)) (regions int64)
	listMemory(most int) []memoryUse // at most so many pieces of registered memory
	// subscribeFaults makes the contexts from number n on call lost for each peer that they lose,
	// and returns how many contexts there are.
	subscribeFaults(n int, lost func(peer hg.Addr, why error)) int
	isConnected(peer hg.Addr) bool // the session that peer is bound to
	// identityOf returns the name in the certificate of a peer, and whether the session is encrypted.
	identityOf(context int, peer hg.Addr) (verified string, secure bool)
}

// A memoryUse describes a piece of registered memory.
type memoryUse struct {
	size   int64
	access string // the access of peers, as na.Access.String
	user   uint64 // hg.Addr.Session of the peer that has used it last; 0 for none
}

// A contextData is the state of a context at the time of a Snapshot.
type contextData struct {
	inspect.Gauges
	open  bool
	stats hg.Stats
	calls []inspect.Call
}

// New returns a page about a node that is open: its peers, the calls under way, probes and causes.
// It counts calls that have ended only with Observe: use Attach before Open for that, instead of
// New.
func New(node *qs.Node) *Page {
	p := new(Page)
	p.Show(node.HG().Class())
	return p
}

// Show adds a class, whose contexts are shown from now on, also those that it makes later. The
// second time it does nothing.
func (p *Page) Show(class *hg.Class) { p.addClass(class) }

// addClass adds class, and reports whether it was not on the page before.
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
			c.Calls() // makes requests have an age from now on
		}
		p.takeSample(now)
	}
	return fresh
}

// Attach makes the page show every node that is opened with cfg, and count its calls. An Observe
// function that cfg already has is called as well. A second Attach of the same page changes
// nothing.
func (p *Page) Attach(cfg *qs.Config) {
	var twice atomic.Bool // another Attach counts already
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

// Observe counts methods, peers and errors. Set it as hg.Config.Observe, or call it from the
// function that is set there. It does not block.
func (p *Page) Observe(e *inspect.Event) {
	if !p.isObserving.Load() {
		p.isObserving.Store(true)
	}
	now := p.elapsedTime()
	p.takeSample(now)
	p.collector.countEvent(e, now)
	p.lost.countEvent(e, now, p.isConnected)
}

// elapsedTime starts the clock of the page with the first call, and returns the time since then.
func (p *Page) elapsedTime() time.Duration {
	p.beginOnce.Do(func() { p.begun = time.Now() })
	if p.elapsed != nil {
		return p.elapsed(p.begun)
	}
	return time.Since(p.begun)
}

// isConnected reports whether the session that peer is bound to is up.
func (p *Page) isConnected(peer hg.Addr) bool {
	return slices.ContainsFunc(p.allSources(), func(s source) bool { return s.isConnected(peer) })
}

// subscribeFaults makes new contexts report the peers that they lose.
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

// Publish publishes the Snapshot of the zero Query as an expvar, which panics when the name is taken.
func (p *Page) Publish(name string) {
	expvar.Publish(name, expvar.Func(func() any { return p.Snapshot(Query{}) }))
}

// allSources returns a copy of the sources.
func (p *Page) allSources() []source {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.sources)
}

// A classSource is the source of a class.
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
		if i < len(gauges) { // a context that was made after Gauges has none
			all = append(all, contextData{gauges[i], !hctx.NA().Closed(), hctx.Stats(), hctx.Calls()})
		}
	}
	return all
}

func (c classSource) countUnused(each func(method string, peer hg.Addr)) (regions int64) {
	for i, hctx := range c.class.Contexts() {
		if i == 0 { // every context reports the regions of the class
			regions = hctx.Stats().NA.Regions
		}
		hghook.IdleHandles(hctx, func(h inspect.Call) {
			if !inspect.IsBuiltIn(h.RPC) { // streams keep some
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
