package debug

import (
	"cmp"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
)

// A look is one Snapshot that is being made, with all rows.
type look struct {
	p   *Page
	q   Query
	now time.Duration

	sources  []source
	from     []place // of each of contexts
	data     []contextData
	contexts []Context
	calls    []Call
	streams  []Call
	methods  []Method
	errors   []ErrorGroup
	peers    []Peer
	load     Load
	work     map[session]*peerWork
	running  map[methodKey]*methodWork
	labels   map[string]string // of peers by their addresses, which a call may know only
	normal   map[kindAndName]Window
	usage    Usage
}

// A kindAndName is what a Method is known by.
type kindAndName struct{ kind, name string }

// A place is where a context is from.
type place struct {
	source source
	number int // among those of the source
}

// A peerPlace is a peer of a context.
type peerPlace struct {
	context int
	address string
}

// A peerWork is what is under way with a session.
type peerWork struct {
	requests, calls int
	active, waiting int           // of the requests: with a place of MaxActive, without one
	oldest          time.Duration // age of the oldest call
}

// A methodWork is what is under way of a method.
type methodWork struct {
	n               int
	active, waiting int
}

// Snapshot looks at everything now. Without Attach or Observe it has nothing of calls that have ended.
func (p *Page) Snapshot(q Query) Snapshot {
	l := &look{p: p, q: q.withDefaults(), now: p.start(), sources: p.all(), work: map[session]*peerWork{}, running: map[methodKey]*methodWork{}, labels: map[string]string{}}
	p.takeSample(l.now)
	p.hearFaults()
	for _, s := range l.sources {
		for i, d := range s.contexts() {
			l.from = append(l.from, place{s, i})
			l.data = append(l.data, d)
			for j := range d.Peers {
				l.labels[d.Peers[j].Addr.Name()] = d.Peers[j].Label
			}
		}
	}
	p.countFlows(l.from, l.data, l.now)
	l.lookAtCalls()
	l.lookAtContexts()
	l.lookAtMethods()
	l.lookAtPeers()
	l.lookAtErrors()
	l.usage = l.p.usage(l.now)
	causes := l.causes() // of all, before the rows are cut
	return l.snapshot(causes)
}

// snapshot cuts the rows to what is wanted.
func (l *look) snapshot(causes []Cause) Snapshot {
	q := l.q
	ofPeer := func(address string) bool { return q.Peer == "" || q.Peer == address }
	unwanted := func(method string) bool {
		return q.Method != "" && q.Method != method || q.Method == "" && !q.All && inspect.IsBuiltIn(method)
	}
	call := func(c Call) bool {
		return unwanted(c.Method) || !ofPeer(c.Address) || !q.matches(c.Kind, c.Method, c.Peer, c.State, c.Means, c.Trace)
	}
	l.calls, l.streams = slices.DeleteFunc(l.calls, call), slices.DeleteFunc(l.streams, call)
	l.methods = slices.DeleteFunc(l.methods, func(m Method) bool {
		return unwanted(m.Name) || !q.matches(m.Kind, m.Name)
	})
	l.errors = slices.DeleteFunc(l.errors, func(e ErrorGroup) bool {
		return q.Method != "" && q.Method != e.Method || !ofPeer(e.Address) || !q.matches(e.Kind, e.Method, e.Error, e.Text, e.Peer, e.Trace)
	})
	calling := map[peerPlace]bool{} // peers with something of q.Method under way
	if q.Method != "" {
		for _, rows := range [][]Call{l.calls, l.streams} {
			for i := range rows {
				calling[peerPlace{rows[i].Context, rows[i].Address}] = true
			}
		}
	}
	l.peers = slices.DeleteFunc(l.peers, func(p Peer) bool {
		return q.Method != "" && !p.called && !calling[peerPlace{p.Context, p.Address}] || !ofPeer(p.Address) || !q.matches(p.Label, p.Address, p.Transport)
	})
	s := Snapshot{
		Time: time.Now(), Process: l.process(), Query: q, Observed: l.p.observed.Load(), Causes: causes, Load: l.load, Contexts: l.contexts,
		Calls: list(q, "calls", l.calls, callColumns), Streams: list(q, "streams", l.streams, callColumns),
		Methods: list(q, "methods", l.methods, methodColumns), Errors: list(q, "errors", l.errors, errorColumns), Peers: list(q, "peers", l.peers, peerColumns),
	}
	// The rest is for those that are shown: it is not free, or is code of the program, which runs with no lock held.
	for _, rows := range [][]Call{s.Calls.Rows, s.Streams.Rows} {
		for i := range rows {
			r := &rows[i]
			r.Key = fmt.Sprintf("%s %d %s %d %x", r.Kind, r.Context, r.Address, r.busy.peer.Session(), r.ID)
			r.TraceURL = l.p.traceURL(r.Trace)
			r.Late = l.isLate(r)
		}
	}
	for i := range s.Methods.Rows {
		if r := s.Methods.Rows[i].Slowest; r != nil {
			r.TraceURL = l.p.traceURL(r.Trace)
		}
	}
	for i := range s.Errors.Rows {
		r := &s.Errors.Rows[i]
		r.TraceURL = l.p.traceURL(r.Trace)
	}
	for i := range s.Peers.Rows {
		r := &s.Peers.Rows[i]
		r.Key = fmt.Sprintf("%d %s %d", r.Context, r.Address, r.addr.Session())
		at := l.from[r.Context]
		r.Verified, r.Secure = at.source.identity(at.number, r.addr)
		if q.Peer != "" {
			r.Methods = l.p.counted.methodsOf(r.addr.Name(), q.All, l.now)
		}
	}
	return s
}

// The columns by which rows can be sorted.
var (
	callColumns = []column[Call]{
		by("age", func(c *Call) time.Duration { return c.Age }), by("kind", func(c *Call) string { return c.Kind }),
		by("method", func(c *Call) string { return c.Method }), by("peer", func(c *Call) string { return c.Peer }),
		by("state", func(c *Call) string { return c.Means }), by("moved", func(c *Call) int64 { return c.Moved }),
		by("items", func(c *Call) int64 { return c.stream().Items }), by("bytes", func(c *Call) int64 { return c.stream().Bytes }),
		by("stuck", func(c *Call) time.Duration { return c.stream().Stuck }),
	}
	methodColumns = []column[Method]{
		by("kind", func(m *Method) string { return m.Kind }), by("method", func(m *Method) string { return m.Name }),
		by("under_way", func(m *Method) int { return m.UnderWay }), by("count", func(m *Method) int64 { return m.Count }),
		by("per_second", func(m *Method) float64 { return m.Minute.PerSecond }), by("per_second_10m", func(m *Method) float64 { return m.TenMinutes.PerSecond }), by("errors", func(m *Method) int64 { return m.TenMinutes.Errors }),
		by("sent", func(m *Method) int64 { return m.Minute.Sent }), by("received", func(m *Method) int64 { return m.Minute.Received }),
		by("p50", func(m *Method) time.Duration { return m.Minute.P50 }), by("p99", func(m *Method) time.Duration { return m.Minute.P99 }),
		by("p50_10m", func(m *Method) time.Duration { return m.TenMinutes.P50 }), by("p99_10m", func(m *Method) time.Duration { return m.TenMinutes.P99 }),
		by("most", func(m *Method) time.Duration { return m.Most }),
	}
	errorColumns = []column[ErrorGroup]{
		by("count", func(e *ErrorGroup) int64 { return e.Count }), by("kind", func(e *ErrorGroup) string { return e.Kind }),
		by("method", func(e *ErrorGroup) string { return e.Method }), by("error", func(e *ErrorGroup) string { return e.Error }),
		by("first", func(e *ErrorGroup) int64 { return e.First.UnixNano() }), by("last", func(e *ErrorGroup) int64 { return e.Last.UnixNano() }),
	}
	peerColumns = []column[Peer]{
		by("peer", func(p *Peer) string { return p.Label }), by("transport", func(p *Peer) string { return p.Transport }),
		by("requests", func(p *Peer) int { return p.Requests }), by("calls", func(p *Peer) int { return p.Calls }),
		by("per_second", func(p *Peer) float64 { return p.Minute.PerSecond }), by("errors", func(p *Peer) int64 { return p.Minute.Errors }),
		by("sent", func(p *Peer) int64 { return p.Minute.Sent }), by("received", func(p *Peer) int64 { return p.Minute.Received }),
		by("held", func(p *Peer) int { return p.Held }), by("free", func(p *Peer) int { return p.Free }),
		by("waiting", func(p *Peer) int { return p.Waiting }), by("stalls", func(p *Peer) int64 { return p.Stalls }),
	}
)

// Sorts returns the names by which a view can be sorted: see Query.Sort.
func Sorts(view string) []string {
	switch view {
	case "calls", "streams":
		return names(callColumns)
	case "methods":
		return names(methodColumns)
	case "errors":
		return names(errorColumns)
	case "peers":
		return names(peerColumns)
	}
	return nil
}

func names[T any](columns []column[T]) (all []string) {
	for _, c := range columns {
		all = append(all, c.name)
	}
	return all
}

// stream returns what is known of a stream, or nothing.
func (c *Call) stream() Stream {
	if c.Stream == nil {
		return Stream{}
	}
	return *c.Stream
}

// label returns what shows a peer to people: what it says of itself, if it is known.
func (l *look) label(peer hg.Addr) string {
	if peer.Session() == 0 {
		if text := l.labels[peer.Name()]; text != "" {
			return clean(text)
		}
	}
	return clean(peer.Label())
}

// shownText is how many bytes of a name or a text are shown.
const shownText = keptText

// clean returns a text that peers may have chosen as it is shown: cut, and with escapes in the place of what does not print.
func clean(text string) string {
	prints := len(text) <= shownText
	for i := 0; i < len(text) && prints; i++ {
		prints = ' ' <= text[i] && text[i] < 0x7f
	}
	if prints {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		part := string(r)
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			part = strings.Trim(strconv.QuoteRune(r), "'")
		}
		if b.Len()+len(part) > shownText-len("…") {
			b.WriteString("…")
			break
		}
		b.WriteString(part)
	}
	return b.String()
}

// kinds are the words for what an event or a call is.
var kinds = [...]string{inspect.EventOrigin: "call", inspect.EventTarget: "request", inspect.EventTransfer: "transfer"}

// A callRef is what a transfer names its request by.
type callRef struct {
	session
	id uint64
}

// lookAtCalls makes the rows of what is under way, and counts it.
func (l *look) lookAtCalls() {
	pieces, n := map[callRef]int{}, [2]int{}
	refOf := func(i int, c *inspect.Call, id uint64) callRef { return callRef{session{i, c.Peer}, id} }
	for i := range l.data {
		for j := range l.data[i].calls {
			switch c := &l.data[i].calls[j]; {
			case c.Kind == inspect.EventTransfer && c.Of != 0:
				pieces[refOf(i, c, c.Of)]++
			case c.Flow != nil:
				n[1]++
			default:
				n[0]++
			}
		}
	}
	l.calls, l.streams = make([]Call, 0, n[0]), make([]Call, 0, n[1])
	for i := range l.data {
		for j := range l.data[i].calls {
			c := &l.data[i].calls[j]
			c.RPC = clean(c.RPC)
			if c.Kind == inspect.EventTransfer && c.Of != 0 {
				continue // its request shows it
			}
			row := l.call(i, c)
			if c.Kind == inspect.EventTarget && len(pieces) > 0 {
				ref := refOf(i, c, c.ID)
				row.Transfers = pieces[ref]
				delete(pieces, ref)
			}
			if l.count(c, &row); row.Stream != nil {
				l.streams = append(l.streams, row)
			} else {
				l.calls = append(l.calls, row)
			}
		}
	}
	if len(pieces) > 0 { // of requests that have ended, or of which they do not know the peer
		for i := range l.data {
			for j := range l.data[i].calls {
				if c := &l.data[i].calls[j]; c.Kind == inspect.EventTransfer && pieces[refOf(i, c, c.Of)] > 0 {
					l.calls = append(l.calls, l.call(i, c))
				}
			}
		}
	}
	oldest := func(a, b Call) int { return cmp.Compare(b.Age, a.Age) }
	for _, rows := range [][]Call{l.calls, l.streams} {
		if !slices.IsSortedFunc(rows, oldest) { // of several contexts
			slices.SortStableFunc(rows, oldest)
		}
	}
	l.streams = stuckFirst(l.streams)
}

// stuckFirst returns streams with those first that stand still, and else in their order.
func stuckFirst(streams []Call) []Call {
	if !slices.ContainsFunc(streams, func(c Call) bool { return c.isStuck() }) {
		return streams
	}
	all := make([]Call, 0, len(streams))
	for _, stuck := range []bool{true, false} {
		for i := range streams {
			if streams[i].isStuck() == stuck {
				all = append(all, streams[i])
			}
		}
	}
	return all
}

// isStuck reports whether c is a stream of which its caller has taken nothing for 1 s.
func (c *Call) isStuck() bool { return c.stream().Stuck >= time.Second }

func (l *look) call(context int, c *inspect.Call) Call {
	row := Call{
		Kind: kinds[c.Kind%3], Context: context, ID: c.ID, Method: c.RPC, Peer: l.label(c.Peer), Address: clean(c.Peer.Name()), State: clean(c.State),
		Means: meaning(c.Kind, clean(c.State)), Age: c.Age, Moved: c.Moved, Size: c.Size, Trace: c.Trace.String(), busy: session{context, c.Peer},
	}
	if f := c.Flow; f != nil {
		row.Stream = &Stream{Items: f.Items, Bytes: f.Bytes, Waiting: f.Waiting, Stuck: f.Stuck}
	}
	return row
}

// count counts what is under way of methods and of peers.
func (l *look) count(c *inspect.Call, row *Call) {
	key := methodKey{c.Kind, c.RPC}
	m := l.running[key]
	if m == nil {
		m = &methodWork{}
		l.running[key] = m
	}
	m.n++
	w := l.work[row.busy]
	if w == nil {
		w = &peerWork{}
		l.work[row.busy] = w
	}
	switch c.Kind {
	case inspect.EventOrigin:
		w.calls++
		w.oldest = max(w.oldest, c.Age)
	case inspect.EventTarget:
		w.requests++
		switch {
		case c.State == "waiting":
			w.waiting++
			m.waiting++
		case hasPlace(c.State):
			if m.active++; c.Flow == nil { // streams have a limit of their own
				w.active++
			}
		}
	}
}

// hasPlace reports whether a request in this state is one of those whose number is limited.
func hasPlace(state string) bool {
	return state != "waiting" && state != "fetching" && state != "rejected"
}

// meanings are the states of docs/internals/STATES.md in words.
var meanings = [...]map[string]string{
	inspect.EventOrigin: {
		"waiting":  "the peer has not answered",
		"fetching": "the answer is being fetched",
		"lending":  "sent; the peer has not fetched its input",
		"leaving":  "has ended; a loan or a timer has not",
		"ending":   "was ended here; its parts have not ended",
		"queued":   "has ended; its callback waits for Trigger",
	},
	inspect.EventTarget: {
		"fetching": "its input is being fetched from the caller",
		"waiting":  "waits for a handler to end",
		"given":    "waits for a worker",
		"running":  "its handler has not answered",
		"rejected": "is being refused",
		"sending":  "its answer has not left",
		"recalled": "its answer could not leave",
		"lending":  "has answered; the caller has not fetched the output",
		"answered": "has answered; its handler has not returned",
	},
	inspect.EventTransfer: {
		"moving": "moves",
		"ending": "was ended here; its pieces have not ended",
		"ended":  "has ended; its callback waits for Trigger",
	},
}

// meaning returns a state in words.
func meaning(kind inspect.EventKind, state string) string {
	if text := meanings[kind%3][state]; text != "" {
		return text
	}
	return state
}

// lookAtContexts makes the rows of contexts.
func (l *look) lookAtContexts() {
	l.contexts = []Context{}
	for i := range l.data {
		d := &l.data[i]
		busy := int64(0)
		for j := range d.calls {
			if d.calls[j].Kind != inspect.EventTransfer {
				busy++
			}
		}
		l.contexts = append(l.contexts, Context{
			ID: d.Context, Address: d.Address, Open: d.open, Active: d.Active, MaxActive: d.MaxActive, MaxActivePerPeer: d.MaxActivePerPeer,
			Streams: d.Streams, MaxStreams: d.MaxStreams, MaxStreamsPerPeer: d.MaxStreamsPerPeer,
			Waiting: d.Waiting, Queued: d.stats.Queued, Peers: len(d.Peers), Lost: d.stats.NA.PeersLost, Left: d.stats.NA.PeersLeft,
			Idle: d.stats.NA.PeersIdle, Denied: d.stats.Denied, HandshakesFailed: d.stats.NA.HandshakesFailed, Handles: d.stats.Handles, Spare: max(d.stats.Handles-busy, 0), Regions: d.stats.NA.Regions,
			Lent: d.stats.Lent, Fetching: d.stats.Pulled, Envelopes: d.Envelopes, EnvelopeSize: d.Eager, Reserved: d.Reserved, Budget: d.Budget,
			HighWater: d.HighWater, Stalls: d.Stalls,
		})
	}
}

// lookAtPeers makes the rows of peers, by their labels.
func (l *look) lookAtPeers() {
	n := 0
	for i := range l.data {
		n += len(l.data[i].Peers)
	}
	l.peers = make([]Peer, 0, n)
	for i := range l.data {
		for j := range l.data[i].Peers {
			g := &l.data[i].Peers[j]
			name := g.Addr.Name()
			row := Peer{
				Context: i, Label: clean(g.Label), Address: clean(name), Process: clean(g.Process), Remote: clean(g.Remote), Transport: clean(g.Transport), Why: clean(g.Why),
				Offered: g.Offered, Held: g.Held, HeldMax: g.HeldMax, Promised: g.Promised, Free: g.Free, Waiting: g.Queued, Stalls: g.Stalls,
				HighWater: g.HighWater, HeldBy: clean(g.HeldBy), Streams: g.Streams, addr: g.Addr,
			}
			for _, addr := range []hg.Addr{g.Addr, g.Addr.Named()} { // as requests and as calls know it
				if w := l.work[session{i, addr}]; w != nil {
					row.Requests += w.requests
					row.Calls += w.calls
				}
			}
			t, called := l.p.counted.peerMinute(name, l.q.All, l.q.Method, l.now)
			row.called = called
			row.Minute = Window{Covers: covered(l.now, minuteSlots), Count: int64(t.count), Errors: int64(t.errors), Sent: t.sent, Received: t.received}
			row.Minute.PerSecond = perSecond(row.Minute)
			l.peers = append(l.peers, row)
		}
	}
	slices.SortStableFunc(l.peers, func(a, b Peer) int { return cmp.Compare(a.Label, b.Label) })
}

// A span is what ended in some slots.
type span struct {
	count, errors, items, sent, received int64
	total, most                          time.Duration
	times                                histogram
}

func (s *span) add(slot *methodSlot) {
	s.count += int64(slot.count)
	s.errors += int64(slot.errors)
	s.items += slot.items
	s.sent += slot.sent
	s.received += slot.received
	s.total += slot.total
	s.most = max(s.most, slot.most)
	s.times.add(slot.times)
}

func (s *span) merge(o *span) {
	s.count += o.count
	s.errors += o.errors
	s.items += o.items
	s.sent += o.sent
	s.received += o.received
	s.total += o.total
	s.most = max(s.most, o.most)
	s.times.add(&o.times)
}

func (s *span) window(covers time.Duration) Window {
	w := Window{
		Covers: covers, Count: s.count, Errors: s.errors, Items: s.items, Sent: s.sent, Received: s.received, Most: s.most, Mean: s.total / time.Duration(max(s.count, 1)),
		P50: s.times.quantile(0.5, s.most), P90: s.times.quantile(0.9, s.most), P99: s.times.quantile(0.99, s.most),
	}
	w.PerSecond = perSecond(w)
	return w
}

func perSecond(w Window) float64 {
	return float64(w.Count) / max(w.Covers.Seconds(), 1)
}

// A history is what a method, or all of a kind, did in the last ten minutes.
type history struct {
	minute, before span // the last minute; the nine before it
	slots          [tenSlots - 1]uint32
	complete       int // of slots
}

// add adds what m did, and returns the slowest. Its lock is held.
func (h *history) add(m *methodCounter, now time.Duration) (slowest *methodSlot) {
	m.advance(now)
	all := m.slots.newest(now, tenSlots)
	for i, slot := range all {
		if i >= len(all)-minuteSlots {
			h.minute.add(slot)
		} else {
			h.before.add(slot)
		}
		if i < len(all)-1 {
			h.slots[i] += slot.count
		}
		if slowest == nil || slot.most > slowest.most {
			slowest = slot
		}
	}
	h.complete = len(all) - 1
	return slowest
}

func (h *history) rates(now time.Duration) Rates {
	ten := h.before
	ten.merge(&h.minute)
	return Rates{
		Minute: h.minute.window(covered(now, minuteSlots)), TenMinutes: ten.window(covered(now, tenSlots)),
		History: slices.Clone(h.slots[:h.complete]),
	}
}

// lookAtMethods makes the rows of methods, by name, and the load of each kind.
func (l *look) lookAtMethods() {
	var loads [len(kinds)]history
	counters := l.p.counted.allMethods()
	seen := map[methodKey]bool{}
	for key, m := range counters {
		seen[methodKey{key.kind, clean(key.name)}] = true
		load := &loads[key.kind%3]
		if inspect.IsBuiltIn(key.name) && !l.q.All {
			load = new(history)
		}
		l.methods = append(l.methods, l.method(m, load))
	}
	for key := range l.running { // of which none has ended
		if !seen[key] && key.kind != inspect.EventTransfer {
			l.methods = append(l.methods, l.method(newMethodCounter(key), &history{}))
		}
	}
	l.normal = make(map[kindAndName]Window, len(l.methods))
	for i := range l.methods {
		m := &l.methods[i]
		w := m.usual
		if !w.isEnough() {
			w = m.TenMinutes
		}
		l.normal[kindAndName{m.Kind, m.Name}] = w
	}
	slices.SortFunc(l.methods, func(a, b Method) int { return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(b.Kind, a.Kind)) })
	for kind, to := range []*Rates{inspect.EventOrigin: &l.load.Calls, inspect.EventTarget: &l.load.Requests, inspect.EventTransfer: &l.load.Transfers} {
		h := &loads[kind]
		*to = h.rates(l.now)
	}
}

// usual returns the times that are usual for the method of c: those of before it became slow, or of the last ten minutes.
func (l *look) usual(c *Call) Window { return l.normal[kindAndName{c.Kind, c.Method}] }

// isLate is Call.Late.
func (l *look) isLate(c *Call) bool {
	if c.Stream != nil {
		return c.isStuck()
	}
	if w := l.usual(c); w.Count >= enoughCalls {
		return c.Age > max(slowerBy*w.P99, 100*time.Millisecond)
	}
	return c.Age >= time.Second
}

func (l *look) method(m *methodCounter, load *history) Method {
	var h history
	m.mu.Lock()
	slot := h.add(m, l.now)
	load.add(m, l.now)
	row := Method{Kind: kinds[m.key.kind%3], Name: clean(m.key.name), Count: m.count, Errors: m.errors, Most: m.most}
	if slot.most > 0 {
		row.Slowest = &Slowest{Took: slot.most, Peer: l.label(slot.slowest.peer), Trace: slot.slowest.trace.String()}
	}
	row.usual, row.slowSince = m.usual.window(), m.usual.slowSince
	m.mu.Unlock()
	row.Rates = h.rates(l.now)
	if w := l.running[methodKey{m.key.kind, row.Name}]; w != nil {
		row.UnderWay = w.n
	}
	if m.key.kind == inspect.EventTarget {
		for _, s := range l.sources {
			row.Limit = max(row.Limit, s.limit(row.Name))
		}
	}
	return row
}

// lookAtErrors makes the rows of errors, the most frequent first.
func (l *look) lookAtErrors() {
	c := &l.p.counted
	c.mu.Lock()
	for key, g := range c.errors {
		e := &g.event
		row := ErrorGroup{
			Kind: kinds[key.kind%3], Method: clean(key.name), Code: int(key.code), Error: key.code.Error(), Count: g.count, First: g.first, Last: g.last,
			Text: clean(e.Text), Remote: e.Remote, Fate: e.Fate.String(), Took: e.Took, Peer: l.label(e.Peer), Address: clean(e.Peer.Name()), Trace: e.Trace.String(),
			ago: l.now - g.at,
		}
		l.errors = append(l.errors, row)
	}
	c.mu.Unlock()
	slices.SortFunc(l.errors, func(a, b ErrorGroup) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Method, b.Method), strings.Compare(a.Kind, b.Kind), cmp.Compare(a.Code, b.Code))
	})
}

// process describes this program.
func (l *look) process() Process {
	p := Process{PID: os.Getpid(), Host: hostname(), Version: version(), Go: runtime.Version(), Since: l.p.begun, Ready: len(l.sources) > 0, Usage: l.usage}
	for _, s := range l.sources {
		if p.Name == "" {
			p.Name = s.name()
		}
		p.Ready = p.Ready && s.ready()
	}
	if p.Name == "" && len(os.Args) > 0 {
		p.Name = filepath.Base(os.Args[0])
	}
	return p
}

var hostname = sync.OnceValue(func() string {
	name, _ := os.Hostname()
	return name
})

// version returns the version of the program's module, and its revision.
var version = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	text := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			text += " " + s.Value[:min(len(s.Value), 12)]
		}
	}
	return strings.TrimSpace(text)
})

// traceURL returns the URL of the page that shows a trace, or "" if there is none.
func (p *Page) traceURL(id string) string {
	if id == "" || p.TraceURL == nil {
		return ""
	}
	text := p.TraceURL(id)
	if u, err := url.Parse(text); err != nil || u.Scheme != "" && u.Scheme != "http" && u.Scheme != "https" {
		return ""
	}
	return text
}
