package debug

import (
	"expvar"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A Page shows the classes of a program. The zero value shows none. It is an http.Handler, and its methods may be called from any
// goroutine.
type Page struct {
	mu      sync.Mutex // guards the fields below
	classes []*hg.Class
	methods map[method]*Method
	errors  []failure // a ring of keptErrors
	next    int       // where in it the next one goes
}

const (
	// keptErrors are shown.
	keptErrors = 64
	// keptMethods bounds the names that are counted: peers may call what does not exist. The others share one.
	keptMethods = 256
)

type method struct {
	kind inspect.EventKind
	name string
}

type failure struct {
	at time.Time
	inspect.Event
}

// New returns a page about a node that is open: its peers and what is under way, probes and gauges. What it shows of each call that has
// ended, Methods and Errors, it learns from Observe only: use Attach before Open for that, instead of New.
func New(node *qs.Node) *Page {
	p := new(Page)
	p.Show(node.HG().Class())
	return p
}

// Show adds a class, whose contexts are shown from now on, also those that it makes later.
func (p *Page) Show(class *hg.Class) {
	p.mu.Lock()
	p.classes = append(p.classes, class)
	p.mu.Unlock()
	for _, c := range class.Contexts() {
		c.Calls() // requests have an age from now on
	}
}

// Attach has a node that is opened with cfg be shown, and its calls be counted, beside what cfg observes already. New needs no cfg, and
// counts none.
func (p *Page) Attach(cfg *qs.Config) {
	cfg.HG.Observe = inspect.Observers(cfg.HG.Observe, p.Observe)
	hghook.OnOpen(&cfg.HG, func(class any) { p.Show(class.(*hg.Class)) })
}

// Observe is for hg.Config.Observe, or is called by what is set there: it counts methods and keeps recent errors. It does not block.
func (p *Page) Observe(e *inspect.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.methods[method{e.Kind, e.RPC}]
	if m == nil {
		m = p.newMethod(e)
	}
	m.Count++
	m.Total += e.Took
	m.times.add(e.Took)
	m.Most = max(m.Most, e.Took)
	if e.Code == 0 {
		return
	}
	m.Errors++
	f := failure{time.Now(), *e}
	if len(p.errors) < keptErrors {
		p.errors = append(p.errors, f)
	} else {
		p.errors[p.next] = f
	}
	p.next = (p.next + 1) % keptErrors
}

// newMethod begins to count. Locked.
func (p *Page) newMethod(e *inspect.Event) *Method {
	if p.methods == nil {
		p.methods = map[method]*Method{}
	}
	k := method{e.Kind, e.RPC}
	if len(p.methods) >= keptMethods {
		k = method{e.Kind, "(others)"}
	}
	m := p.methods[k]
	if m == nil {
		m = &Method{Kind: k.kind.String(), Name: k.name, times: &times{}}
		p.methods[k] = m
	}
	return m
}

// Publish publishes Snapshot as an expvar, which panics when the name is taken.
func (p *Page) Publish(name string) {
	expvar.Publish(name, expvar.Func(func() any { return p.Snapshot() }))
}

// A Snapshot is what the page shows.
type Snapshot struct {
	Time     time.Time
	Contexts []Context
	Methods  []Method // by kind and name; only with Observe
	Errors   []Error  // the last 64, the youngest first; only with Observe
}

// A Context is what is known of one.
type Context struct {
	inspect.Gauges
	Queued  int    // callbacks and handlers that wait for Trigger
	Handles int64  // handles that are not closed, and requests that have not ended
	Lent    int64  // bytes of input and output lent to peers
	Pulled  int64  // bytes of input and output being fetched
	Regions int64  // registered memory of the class
	Lost    int64  // peers that died or fell silent
	Left    int64  // peers that closed the session
	Calls   []Call // the oldest first, at most 1,000
	More    int    // of them, that are not in Calls
}

// A Call is something that is under way.
type Call struct {
	Kind  string // "origin", "target" or "transfer"
	RPC   string
	Peer  string
	State string
	Age   time.Duration
	Moved int64 // bytes of a transfer
	Size  int64
}

// A Method counts what has ended.
type Method struct {
	Kind   string
	Name   string
	Count  int64
	Errors int64
	Total  time.Duration
	Most   time.Duration
	P50    time.Duration // half took no longer; these three are right to an eighth
	P90    time.Duration
	P99    time.Duration

	times *times
}

// Mean returns the mean time.
func (m Method) Mean() time.Duration { return m.Total / time.Duration(max(m.Count, 1)) }

// An Error is the end of something that failed.
type Error struct {
	Time   time.Time
	Kind   string
	RPC    string
	Peer   string
	Code   uint8
	Text   string // of the code
	Remote bool   // the target said so
	Fate   string
	Took   time.Duration
}

// keptCalls bounds the calls of a context that are shown.
const keptCalls = 1000

// Snapshot looks at everything now.
func (p *Page) Snapshot() Snapshot {
	s := Snapshot{Time: time.Now()}
	p.mu.Lock()
	classes := slices.Clone(p.classes)
	for _, m := range p.methods {
		v := *m
		v.P50, v.P90, v.P99, v.times = m.quantile(0.5), m.quantile(0.9), m.quantile(0.99), nil
		s.Methods = append(s.Methods, v)
	}
	for i := range p.errors {
		s.Errors = append(s.Errors, p.errors[(p.next+len(p.errors)-1-i)%len(p.errors)].shown())
	}
	p.mu.Unlock()
	slices.SortFunc(s.Methods, func(a, b Method) int {
		if c := strings.Compare(a.Kind, b.Kind); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	for _, class := range classes {
		gauges := class.Gauges()
		for i, c := range class.Contexts() {
			if i < len(gauges) { // it may be new
				s.Contexts = append(s.Contexts, look(c, gauges[i]))
			}
		}
	}
	return s
}

func look(c *hg.Context, g inspect.Gauges) Context {
	st, calls := c.Stats(), c.Calls()
	v := Context{
		Gauges: g, Queued: st.Queued, Handles: st.Handles, Lent: st.Lent, Pulled: st.Pulled, Regions: st.NA.Regions, Lost: st.NA.PeersLost, Left: st.NA.PeersLeft,
		More: max(len(calls)-keptCalls, 0),
	}
	for _, i := range calls[:min(len(calls), keptCalls)] {
		v.Calls = append(v.Calls, Call{i.Kind.String(), i.RPC, i.Peer.Label(), i.State, i.Age, i.Moved, i.Size})
	}
	return v
}

func (f *failure) shown() Error {
	return Error{
		Time: f.at, Kind: f.Kind.String(), RPC: f.RPC, Peer: f.Peer.Label(), Code: uint8(f.Code), Text: f.Code.Error(),
		Remote: f.Remote, Fate: f.Fate.String(), Took: f.Took,
	}
}
