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

// A Page shows the classes of a program. The zero value shows none. It is an http.Handler, and its methods may be called from any
// goroutine. The exported fields are set before it is used.
type Page struct {
	// Guard, if set, is called for each request but for probes. If it reports false it has answered w, and the page says nothing.
	Guard func(w http.ResponseWriter, r *http.Request) bool
	// TraceURL, if set, returns the URL of the page that shows a trace, by its id of 32 hexadecimal digits, or "" if there is none. Only http, https and
	// relative URLs become links.
	TraceURL func(id string) string
	// StalledAfter is the age from which on calls that have not ended, streams of which nobody takes anything, and messages without
	// room at their peer count among the Causes. Zero means 5 s.
	StalledAfter time.Duration

	counted  collector
	lost     lostPeers
	observed atomic.Bool
	sampled  atomic.Int64 // the number of the newest slot with a sample, and one
	begin    sync.Once
	begun    time.Time                           // set by begin
	elapsed  func(since time.Time) time.Duration // replaced by tests; nil means time.Since

	mu      sync.Mutex // guards the fields below
	sources []source
	heard   map[source]int       // of their contexts, how many tell of lost peers
	flows   map[flowKey]flowMark // of streams, at the last look
	first   processSample
	samples ring[processSample]
	recent  map[string]recentCause // by Cause.stays
}

// A source is a class that is shown.
type source interface {
	name() string            // of the process, empty for none
	open() bool              // a context is not closed
	ready() bool             // hg/health says so
	limit(method string) int // handlers of a method that run at once; 0 for no limit of its own
	contexts() []contextData // of now
	// unused counts what is not closed and not in use: handles of the program, and registered memory. each is called for each of these handles.
	unused(each func(method string, peer hg.Addr)) (regions int64)
	memory(most int) []memoryUse // at most so many pieces of registered memory
	// onFault has contexts from number n on tell of peers that are lost, and returns how many contexts there are.
	onFault(n int, lost func(peer hg.Addr, why error)) int
	connected(peer hg.Addr) bool // the session that peer is bound to
	// identity returns what the certificate of a peer says, and whether the session is encrypted.
	identity(context int, peer hg.Addr) (verified string, secure bool)
}

// A memoryUse is what is known of a piece of registered memory.
type memoryUse struct {
	size   int64
	access string // what peers may do, as na.Access.String
	user   uint64 // hg.Addr.Session of the peer that has used it last; 0 for none
}

// A contextData is what a context tells of now.
type contextData struct {
	inspect.Gauges
	open  bool
	stats hg.Stats
	calls []inspect.Call
}

// New returns a page about a node that is open: its peers, what is under way, probes and causes. What it shows of calls that have ended
// it learns from Observe only: use Attach before Open for that, instead of New.
func New(node *qs.Node) *Page {
	p := new(Page)
	p.Show(node.HG().Class())
	return p
}

// Show adds a class, whose contexts are shown from now on, also those that it makes later. The second time it does nothing.
func (p *Page) Show(class *hg.Class) { p.show(class) }

// show reports whether class was not shown before.
func (p *Page) show(class *hg.Class) bool {
	now := p.start()
	p.mu.Lock()
	fresh := !slices.Contains(p.sources, source(classSource{class}))
	if fresh {
		p.sources = append(p.sources, classSource{class})
	}
	p.mu.Unlock()
	if fresh {
		for _, c := range class.Contexts() {
			c.Calls() // requests have an age from now on
		}
		p.takeSample(now)
	}
	return fresh
}

// Attach has every node that is opened with cfg be shown, and its calls be counted, beside what cfg observes already. A second Attach of
// the same page changes nothing. New needs no cfg, and counts none.
func (p *Page) Attach(cfg *qs.Config) {
	var twice atomic.Bool // another Attach counts already
	cfg.HG.Observe = inspect.Observers(cfg.HG.Observe, func(e *inspect.Event) {
		if !twice.Load() {
			p.Observe(e)
		}
	})
	hghook.OnOpen(&cfg.HG, func(class any) {
		if !p.show(class.(*hg.Class)) {
			twice.Store(true)
		}
	})
}

// Observe is for hg.Config.Observe, or is called by what is set there: it counts methods, peers and errors. It does not block.
func (p *Page) Observe(e *inspect.Event) {
	if !p.observed.Load() {
		p.observed.Store(true)
	}
	now := p.start()
	p.takeSample(now)
	p.counted.observe(e, now)
	p.lost.observe(e, now, p.connected)
}

// start begins to count time, and returns how long ago that was.
func (p *Page) start() time.Duration {
	p.begin.Do(func() { p.begun = time.Now() })
	if p.elapsed != nil {
		return p.elapsed(p.begun)
	}
	return time.Since(p.begun)
}

// connected reports whether the session that peer is bound to is up.
func (p *Page) connected(peer hg.Addr) bool {
	return slices.ContainsFunc(p.all(), func(s source) bool { return s.connected(peer) })
}

// hearFaults has contexts that are new tell of peers that are lost.
func (p *Page) hearFaults() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.sources {
		if p.heard == nil {
			p.heard = map[source]int{}
		}
		p.heard[s] = s.onFault(p.heard[s], func(peer hg.Addr, why error) { p.lost.lost(peer, why, p.start()) })
	}
}

// Publish publishes the Snapshot of the zero Query as an expvar, which panics when the name is taken.
func (p *Page) Publish(name string) {
	expvar.Publish(name, expvar.Func(func() any { return p.Snapshot(Query{}) }))
}

// all returns the sources.
func (p *Page) all() []source {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.sources)
}

// A classSource is the source of a class.
type classSource struct{ class *hg.Class }

func (c classSource) name() string { return c.class.NA().Config().Name }

func (c classSource) open() bool {
	return slices.ContainsFunc(c.class.Contexts(), func(c *hg.Context) bool { return !c.NA().Closed() })
}

func (c classSource) ready() bool { return hghook.IsReady(c.class) }

func (c classSource) limit(method string) int {
	rpc, _ := c.class.Registered(method)
	return rpc.MaxActive
}

func (c classSource) contexts() (all []contextData) {
	gauges := c.class.Gauges()
	for i, hctx := range c.class.Contexts() {
		if i < len(gauges) { // it may be new
			all = append(all, contextData{gauges[i], !hctx.NA().Closed(), hctx.Stats(), hctx.Calls()})
		}
	}
	return all
}

func (c classSource) unused(each func(method string, peer hg.Addr)) (regions int64) {
	for i, hctx := range c.class.Contexts() {
		if i == 0 { // they are of the class
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

func (c classSource) memory(most int) (all []memoryUse) {
	for _, m := range c.class.NA().Registered(most) {
		all = append(all, memoryUse{m.Len, m.Access.String(), m.User})
	}
	return all
}

func (c classSource) onFault(n int, lost func(peer hg.Addr, why error)) int {
	all := c.class.Contexts()
	for _, hctx := range all[min(n, len(all)):] {
		hctx.NA().OnFault(lost)
	}
	return len(all)
}

func (c classSource) connected(peer hg.Addr) bool {
	return slices.ContainsFunc(c.class.Contexts(), func(c *hg.Context) bool { return c.NA().Connected(peer) })
}

func (c classSource) identity(context int, peer hg.Addr) (verified string, secure bool) {
	all := c.class.Contexts()
	if context >= len(all) {
		return "", false
	}
	id, _ := all[context].NA().Identity(peer)
	return id.Name, id.Secure
}
