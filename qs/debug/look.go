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

// A snapshotBuilder collects the rows of all lists and builds a Snapshot from them. It keeps all
// rows until cutRows discards those that the query does not select.
type snapshotBuilder struct {
	p   *Page
	q   Query
	now time.Duration

	sources    []source
	origins    []contextOrigin // contexts that the elements of data describe, in the same order
	data       []contextData
	contexts   []Context
	calls      []Call
	streams    []Call
	methods    []Method
	errors     []ErrorGroup
	peers      []Peer
	load       Load
	peerWork   map[session]*peerWork
	methodWork map[methodKey]*methodWork
	labels     map[string]string // labels of peers by address, for calls that record only the peer's address
	usualTimes map[kindAndName]Window
	usage      Usage
}

// A kindAndName is the key of a Method: its Kind and its Name.
type kindAndName struct{ kind, name string }

// A contextOrigin identifies a context by its source and its index there.
type contextOrigin struct {
	source source
	number int // index in source.contexts
}

// A peerKey identifies a peer of a context.
type peerKey struct {
	context int
	address string
}

// A peerWork counts the calls and requests that are in flight in one session.
type peerWork struct {
	requests, calls int
	active, waiting int           // number of requests that count against MaxActive, and that wait for it
	oldest          time.Duration // age of the oldest call to the peer
}

// A methodWork counts the calls or requests of one method that are in flight.
type methodWork struct {
	underWay        int
	active, waiting int
}

// Snapshot returns the current state of the classes on the page. Completed calls are included only
// if they are counted through Attach or Observe.
func (p *Page) Snapshot(q Query) Snapshot {
	l := &snapshotBuilder{p: p, q: q.withDefaults(), now: p.elapsedTime(), sources: p.allSources(), peerWork: map[session]*peerWork{}, methodWork: map[methodKey]*methodWork{}, labels: map[string]string{}}
	p.takeSample(l.now)
	p.subscribeFaults()
	for _, s := range l.sources {
		for i, d := range s.contexts() {
			l.origins = append(l.origins, contextOrigin{s, i})
			l.data = append(l.data, d)
			for j := range d.Peers {
				l.labels[d.Peers[j].Addr.Name()] = d.Peers[j].Label
			}
		}
	}
	p.countStreams(l.origins, l.data, l.now)
	l.addCalls()
	l.addContexts()
	l.addMethods()
	l.addPeers()
	l.addErrors()
	l.usage = l.p.currentUsage(l.now)
	causes := l.findCauses() // before cutRows, so that all rows are considered
	return l.cutRows(causes)
}

// cutRows discards the rows that the query does not select and returns a Snapshot of the others.
func (l *snapshotBuilder) cutRows(causes []Cause) Snapshot {
	q := l.q
	ofPeer := func(address string) bool { return q.Peer == "" || q.Peer == address }
	isMethodHidden := func(method string) bool {
		return q.Method != "" && q.Method != method || q.Method == "" && !q.All && inspect.IsBuiltIn(method)
	}
	isCallHidden := func(c Call) bool {
		return isMethodHidden(c.Method) || !ofPeer(c.Address) || !q.matches(c.Kind, c.Method, c.Peer, c.State, c.Means, c.Trace)
	}
	l.calls, l.streams = slices.DeleteFunc(l.calls, isCallHidden), slices.DeleteFunc(l.streams, isCallHidden)
	l.methods = slices.DeleteFunc(l.methods, func(m Method) bool {
		return isMethodHidden(m.Name) || !q.matches(m.Kind, m.Name)
	})
	l.errors = slices.DeleteFunc(l.errors, func(e ErrorGroup) bool {
		return q.Method != "" && q.Method != e.Method || !ofPeer(e.Address) || !q.matches(e.Kind, e.Method, e.Error, e.Text, e.Peer, e.Trace)
	})
	calling := map[peerKey]bool{} // peers with a call or request of q.Method in flight
	if q.Method != "" {
		for _, rows := range [][]Call{l.calls, l.streams} {
			for i := range rows {
				calling[peerKey{rows[i].Context, rows[i].Address}] = true
			}
		}
	}
	l.peers = slices.DeleteFunc(l.peers, func(p Peer) bool {
		return q.Method != "" && !p.wasCalled && !calling[peerKey{p.Context, p.Address}] || !ofPeer(p.Address) || !q.matches(p.Label, p.Address, p.Transport)
	})
	s := Snapshot{
		Time: time.Now(), Process: l.newProcess(), Query: q, Observed: l.p.isObserving.Load(), Causes: causes, Load: l.load, Contexts: l.contexts,
		Calls: listOf(q, "calls", l.calls, callColumns), Streams: listOf(q, "streams", l.streams, callColumns),
		Methods: listOf(q, "methods", l.methods, methodColumns), Errors: listOf(q, "errors", l.errors, errorColumns), Peers: listOf(q, "peers", l.peers, peerColumns),
	}
	// Do the following only for the selected rows, because it is expensive and calls user code. No
	// lock is held here.
	for _, rows := range [][]Call{s.Calls.Rows, s.Streams.Rows} {
		for i := range rows {
			r := &rows[i]
			r.Key = fmt.Sprintf("%s %d %s %d %x", r.Kind, r.Context, r.Address, r.session.peer.Session(), r.ID)
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
		at := l.origins[r.Context]
		r.Verified, r.Secure = at.source.identityOf(at.number, r.addr)
		if q.Peer != "" {
			r.Methods = l.p.collector.methodsOfPeer(r.addr.Name(), q.All, l.now)
		}
	}
	return s
}

// The lists below hold the columns by which each view can be sorted.
var (
	callColumns = []sortColumn[Call]{
		columnBy("age", func(c *Call) time.Duration { return c.Age }), columnBy("kind", func(c *Call) string { return c.Kind }),
		columnBy("method", func(c *Call) string { return c.Method }), columnBy("peer", func(c *Call) string { return c.Peer }),
		columnBy("state", func(c *Call) string { return c.Means }), columnBy("moved", func(c *Call) int64 { return c.Moved }),
		columnBy("items", func(c *Call) int64 { return c.streamOrZero().Items }), columnBy("bytes", func(c *Call) int64 { return c.streamOrZero().Bytes }),
		columnBy("stuck", func(c *Call) time.Duration { return c.streamOrZero().Stuck }),
	}
	methodColumns = []sortColumn[Method]{
		columnBy("kind", func(m *Method) string { return m.Kind }), columnBy("method", func(m *Method) string { return m.Name }),
		columnBy("under_way", func(m *Method) int { return m.UnderWay }), columnBy("count", func(m *Method) int64 { return m.Count }),
		columnBy("per_second", func(m *Method) float64 { return m.Minute.PerSecond }), columnBy("per_second_10m", func(m *Method) float64 { return m.TenMinutes.PerSecond }), columnBy("errors", func(m *Method) int64 { return m.TenMinutes.Errors }),
		columnBy("sent", func(m *Method) int64 { return m.Minute.Sent }), columnBy("received", func(m *Method) int64 { return m.Minute.Received }),
		columnBy("p50", func(m *Method) time.Duration { return m.Minute.P50 }), columnBy("p99", func(m *Method) time.Duration { return m.Minute.P99 }),
		columnBy("p50_10m", func(m *Method) time.Duration { return m.TenMinutes.P50 }), columnBy("p99_10m", func(m *Method) time.Duration { return m.TenMinutes.P99 }),
		columnBy("most", func(m *Method) time.Duration { return m.Most }),
	}
	errorColumns = []sortColumn[ErrorGroup]{
		columnBy("count", func(e *ErrorGroup) int64 { return e.Count }), columnBy("kind", func(e *ErrorGroup) string { return e.Kind }),
		columnBy("method", func(e *ErrorGroup) string { return e.Method }), columnBy("error", func(e *ErrorGroup) string { return e.Error }),
		columnBy("first", func(e *ErrorGroup) int64 { return e.First.UnixNano() }), columnBy("last", func(e *ErrorGroup) int64 { return e.Last.UnixNano() }),
	}
	peerColumns = []sortColumn[Peer]{
		columnBy("peer", func(p *Peer) string { return p.Label }), columnBy("transport", func(p *Peer) string { return p.Transport }),
		columnBy("requests", func(p *Peer) int { return p.Requests }), columnBy("calls", func(p *Peer) int { return p.Calls }),
		columnBy("per_second", func(p *Peer) float64 { return p.Minute.PerSecond }), columnBy("errors", func(p *Peer) int64 { return p.Minute.Errors }),
		columnBy("sent", func(p *Peer) int64 { return p.Minute.Sent }), columnBy("received", func(p *Peer) int64 { return p.Minute.Received }),
		columnBy("held", func(p *Peer) int { return p.Held }), columnBy("free", func(p *Peer) int { return p.Free }),
		columnBy("waiting", func(p *Peer) int { return p.Waiting }), columnBy("stalls", func(p *Peer) int64 { return p.Stalls }),
	}
)

// Sorts returns the names of the columns by which a view can be sorted. See Query.Sort.
func Sorts(view string) []string {
	switch view {
	case "calls", "streams":
		return columnNames(callColumns)
	case "methods":
		return columnNames(methodColumns)
	case "errors":
		return columnNames(errorColumns)
	case "peers":
		return columnNames(peerColumns)
	}
	return nil
}

func columnNames[T any](columns []sortColumn[T]) (all []string) {
	for _, c := range columns {
		all = append(all, c.name)
	}
	return all
}

// streamOrZero returns *c.Stream, or the zero Stream if c.Stream is nil.
func (c *Call) streamOrZero() Stream {
	if c.Stream == nil {
		return Stream{}
	}
	return *c.Stream
}

// labelOf returns the text to display for peer, which is its label if that is known.
func (l *snapshotBuilder) labelOf(peer hg.Addr) string {
	if peer.Session() == 0 {
		if text := l.labels[peer.Name()]; text != "" {
			return printableText(text)
		}
	}
	return printableText(peer.Label())
}

// maxShownBytes is the maximum length, in bytes, of a name or a text on the page.
const maxShownBytes = maxTextBytes

// printableText returns text in a form that is safe to display, because a peer may have chosen it.
// It truncates text to maxShownBytes and replaces unprintable characters with escape sequences.
func printableText(text string) string {
	prints := len(text) <= maxShownBytes
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
		if b.Len()+len(part) > maxShownBytes-len("…") {
			b.WriteString("…")
			break
		}
		b.WriteString(part)
	}
	return b.String()
}

// kindWords holds the names of the kinds of events and calls.
var kindWords = [...]string{inspect.EventOrigin: "call", inspect.EventTarget: "request", inspect.EventTransfer: "transfer"}

// A requestKey identifies the request that a transfer is part of.
type requestKey struct {
	session
	id uint64
}

// addCalls adds a row for each call, request, transfer and stream in flight, and counts them by
// method and by peer.
func (l *snapshotBuilder) addCalls() {
	pieces, nCalls, nStreams := map[requestKey]int{}, 0, 0
	refOf := func(i int, c *inspect.Call, id uint64) requestKey { return requestKey{session{i, c.Peer}, id} }
	for i := range l.data {
		for j := range l.data[i].calls {
			switch c := &l.data[i].calls[j]; {
			case c.Kind == inspect.EventTransfer && c.Of != 0:
				pieces[refOf(i, c, c.Of)]++
			case c.Flow != nil:
				nStreams++
			default:
				nCalls++
			}
		}
	}
	l.calls, l.streams = make([]Call, 0, nCalls), make([]Call, 0, nStreams)
	for i := range l.data {
		for j := range l.data[i].calls {
			c := &l.data[i].calls[j]
			c.RPC = printableText(c.RPC)
			if c.Kind == inspect.EventTransfer && c.Of != 0 {
				continue // counted in the row of the request that it is part of
			}
			row := l.newCall(i, c)
			if c.Kind == inspect.EventTarget && len(pieces) > 0 {
				ref := refOf(i, c, c.ID)
				row.Transfers = pieces[ref]
				delete(pieces, ref)
			}
			if l.countCall(c, &row); row.Stream != nil {
				l.streams = append(l.streams, row)
			} else {
				l.calls = append(l.calls, row)
			}
		}
	}
	if len(pieces) > 0 { // remaining transfers, whose request has completed or has a different peer address
		for i := range l.data {
			for j := range l.data[i].calls {
				if c := &l.data[i].calls[j]; c.Kind == inspect.EventTransfer && pieces[refOf(i, c, c.Of)] > 0 {
					l.calls = append(l.calls, l.newCall(i, c))
				}
			}
		}
	}
	compareAge := func(a, b Call) int { return cmp.Compare(b.Age, a.Age) }
	for _, rows := range [][]Call{l.calls, l.streams} {
		if !slices.IsSortedFunc(rows, compareAge) { // there are several contexts
			slices.SortStableFunc(rows, compareAge)
		}
	}
	l.streams = moveStuckFirst(l.streams)
}

// moveStuckFirst moves stuck streams to the front of streams. It otherwise preserves their order.
func moveStuckFirst(streams []Call) []Call {
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

// isStuck reports whether c is a stream whose caller has not read an item for 1 s.
func (c *Call) isStuck() bool { return c.streamOrZero().Stuck >= time.Second }

func (l *snapshotBuilder) newCall(context int, c *inspect.Call) Call {
	row := Call{
		Kind: kindWords[c.Kind%3], Context: context, ID: c.ID, Method: c.RPC, Peer: l.labelOf(c.Peer), Address: printableText(c.Peer.Name()), State: printableText(c.State),
		Means: stateText(c.Kind, printableText(c.State)), Age: c.Age, Moved: c.Moved, Size: c.Size, Trace: c.Trace.String(), session: session{context, c.Peer},
	}
	if f := c.Flow; f != nil {
		row.Stream = &Stream{Items: f.Items, Bytes: f.Bytes, Waiting: f.Waiting, Stuck: f.Stuck}
	}
	return row
}

// countCall counts a call in flight for its method and its peer.
func (l *snapshotBuilder) countCall(c *inspect.Call, row *Call) {
	key := methodKey{c.Kind, c.RPC}
	m := l.methodWork[key]
	if m == nil {
		m = &methodWork{}
		l.methodWork[key] = m
	}
	m.underWay++
	w := l.peerWork[row.session]
	if w == nil {
		w = &peerWork{}
		l.peerWork[row.session] = w
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
		case isActiveState(c.State):
			if m.active++; c.Flow == nil { // streams count against MaxStreams instead
				w.active++
			}
		}
	}
}

// isActiveState reports whether a request in the given state counts against MaxActive.
func isActiveState(state string) bool {
	return state != "waiting" && state != "fetching" && state != "rejected"
}

// stateTexts maps each state listed in docs/internals/STATES.md to a description of it.
var stateTexts = [...]map[string]string{
	inspect.EventOrigin: {
		"waiting":  "the peer has not answered",
		"fetching": "the answer is being fetched",
		"lending":  "sent; the peer has not fetched its input",
		"leaving":  "completed; a loan or a timer is still in use",
		"ending":   "ended by this process; its parts have not completed",
		"queued":   "completed; its callback waits for Trigger",
	},
	inspect.EventTarget: {
		"fetching": "its input is being fetched from the caller",
		"waiting":  "waits for a handler to finish",
		"given":    "waits for a worker",
		"running":  "its handler has not answered",
		"rejected": "is being refused",
		"sending":  "its answer has not been sent",
		"recalled": "its answer could not be sent",
		"lending":  "has answered; the caller has not fetched the output",
		"answered": "has answered; its handler has not returned",
	},
	inspect.EventTransfer: {
		"moving":   "in progress",
		"stopping": "ended by this process; its pieces have not completed",
		"moved":    "completed; its callback waits for Trigger",
	},
}

// stateText returns the description of a state, or the state itself if there is none.
func stateText(kind inspect.EventKind, state string) string {
	if text := stateTexts[kind%3][state]; text != "" {
		return text
	}
	return state
}

// addContexts adds the rows for contexts.
func (l *snapshotBuilder) addContexts() {
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

// addPeers adds the rows for peers, sorted by label.
func (l *snapshotBuilder) addPeers() {
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
				Context: i, Label: printableText(g.Label), Address: printableText(name), Process: printableText(g.Process), Remote: printableText(g.Remote), Transport: printableText(g.Transport), Why: printableText(g.Why),
				Offered: g.Offered, Held: g.Held, HeldMax: g.HeldMax, Promised: g.Promised, Free: g.Free, Waiting: g.Queued, Stalls: g.Stalls,
				HighWater: g.HighWater, HeldBy: printableText(g.HeldBy), Streams: g.Streams, addr: g.Addr,
			}
			// A peer may be known by two addresses: that of its requests, and that to which calls
			// are made.
			for _, addr := range []hg.Addr{g.Addr, g.Addr.Named()} {
				if w := l.peerWork[session{i, addr}]; w != nil {
					row.Requests += w.requests
					row.Calls += w.calls
				}
			}
			t, called := l.p.collector.countPeerMinute(name, l.q.All, l.q.Method, l.now)
			row.wasCalled = called
			row.Minute = Window{Covers: coveredTime(l.now, minuteSlots), Count: int64(t.count), Errors: int64(t.errors), Sent: t.sent, Received: t.received}
			row.Minute.PerSecond = perSecond(row.Minute)
			l.peers = append(l.peers, row)
		}
	}
	slices.SortStableFunc(l.peers, func(a, b Peer) int { return cmp.Compare(a.Label, b.Label) })
}

// A slotTotals holds the sums of the counters of several slots.
type slotTotals struct {
	count, errors, items, sent, received int64
	total, longest                       time.Duration
	times                                histogram
}

func (s *slotTotals) add(slot *methodSlot) {
	s.count += int64(slot.count)
	s.errors += int64(slot.errors)
	s.items += slot.items
	s.sent += slot.sent
	s.received += slot.received
	s.total += slot.total
	s.longest = max(s.longest, slot.longest)
	s.times.add(slot.times)
}

func (s *slotTotals) merge(o *slotTotals) {
	s.count += o.count
	s.errors += o.errors
	s.items += o.items
	s.sent += o.sent
	s.received += o.received
	s.total += o.total
	s.longest = max(s.longest, o.longest)
	s.times.add(&o.times)
}

func (s *slotTotals) windowOver(covers time.Duration) Window {
	w := Window{
		Covers: covers, Count: s.count, Errors: s.errors, Items: s.items, Sent: s.sent, Received: s.received, Most: s.longest, Mean: s.total / time.Duration(max(s.count, 1)),
		P50: s.times.quantile(0.5, s.longest), P90: s.times.quantile(0.9, s.longest), P99: s.times.quantile(0.99, s.longest),
	}
	w.PerSecond = perSecond(w)
	return w
}

func perSecond(w Window) float64 {
	return float64(w.Count) / max(w.Covers.Seconds(), 1)
}

// A history holds statistics of the calls that completed in the last ten minutes, either of one
// method or of all methods of a kind.
type history struct {
	minute, before slotTotals // last minute, and the nine minutes before it
	slots          [tenMinuteSlots - 1]uint32
	complete       int // number of complete slots
}

// add adds the calls of m that completed in the ten minutes before now, and returns the slot that
// contains the slowest of them. The caller must hold m.mu.
func (h *history) add(m *methodCounter, now time.Duration) (slowest *methodSlot) {
	m.advanceLocked(now)
	all := m.slots.newestSlots(now, tenMinuteSlots)
	for i, slot := range all {
		if i >= len(all)-minuteSlots {
			h.minute.add(slot)
		} else {
			h.before.add(slot)
		}
		if i < len(all)-1 {
			h.slots[i] += slot.count
		}
		if slowest == nil || slot.longest > slowest.longest {
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
		Minute: h.minute.windowOver(coveredTime(now, minuteSlots)), TenMinutes: ten.windowOver(coveredTime(now, tenMinuteSlots)),
		History: slices.Clone(h.slots[:h.complete]),
	}
}

// addMethods adds the rows for methods, sorted by name, and computes the load of each kind.
func (l *snapshotBuilder) addMethods() {
	var loads [len(kindWords)]history
	counters := l.p.collector.allMethods()
	seen := map[methodKey]bool{}
	for key, m := range counters {
		seen[methodKey{key.kind, printableText(key.name)}] = true
		load := &loads[key.kind%3]
		if inspect.IsBuiltIn(key.name) && !l.q.All {
			load = new(history)
		}
		l.methods = append(l.methods, l.newMethod(m, load))
	}
	for key := range l.methodWork { // methods without a completed call
		if !seen[key] && key.kind != inspect.EventTransfer {
			l.methods = append(l.methods, l.newMethod(newMethodCounter(key), &history{}))
		}
	}
	l.usualTimes = make(map[kindAndName]Window, len(l.methods))
	for i := range l.methods {
		m := &l.methods[i]
		w := m.usual
		if !w.isBaseline() {
			w = m.TenMinutes
		}
		l.usualTimes[kindAndName{m.Kind, m.Name}] = w
	}
	slices.SortFunc(l.methods, func(a, b Method) int { return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(b.Kind, a.Kind)) })
	for kind, to := range []*Rates{inspect.EventOrigin: &l.load.Calls, inspect.EventTarget: &l.load.Requests, inspect.EventTransfer: &l.load.Transfers} {
		h := &loads[kind]
		*to = h.rates(l.now)
	}
}

// usualOf returns the usual times of c's method, which are its baseline or, if it has none, those
// of the last ten minutes.
func (l *snapshotBuilder) usualOf(c *Call) Window { return l.usualTimes[kindAndName{c.Kind, c.Method}] }

// isLate reports whether c is late, as defined by Call.Late.
func (l *snapshotBuilder) isLate(c *Call) bool {
	if c.Stream != nil {
		return c.isStuck()
	}
	if w := l.usualOf(c); w.Count >= minCalls {
		return c.Age > max(medianFactor*w.P99, 100*time.Millisecond)
	}
	return c.Age >= time.Second
}

func (l *snapshotBuilder) newMethod(m *methodCounter, load *history) Method {
	var h history
	m.mu.Lock()
	slot := h.add(m, l.now)
	load.add(m, l.now)
	row := Method{Kind: kindWords[m.key.kind%3], Name: printableText(m.key.name), Count: m.count, Errors: m.errors, Most: m.longest}
	if slot.longest > 0 {
		row.Slowest = &Slowest{Took: slot.longest, Peer: l.labelOf(slot.slowest.peer), Trace: slot.slowest.trace.String()}
	}
	row.usual, row.slowSince = m.baseline.window(), m.baseline.slowSince
	m.mu.Unlock()
	row.Rates = h.rates(l.now)
	if w := l.methodWork[methodKey{m.key.kind, row.Name}]; w != nil {
		row.UnderWay = w.underWay
	}
	if m.key.kind == inspect.EventTarget {
		for _, s := range l.sources {
			row.Limit = max(row.Limit, s.limitOf(row.Name))
		}
	}
	return row
}

// addErrors adds the rows for errors, most frequent first.
func (l *snapshotBuilder) addErrors() {
	c := &l.p.collector
	c.mu.Lock()
	for key, g := range c.errors {
		e := &g.lastEvent
		row := ErrorGroup{
			Kind: kindWords[key.kind%3], Method: printableText(key.name), Code: int(key.code), Error: key.code.Error(), Count: g.count, First: g.first, Last: g.last,
			Text: printableText(e.Text), Remote: e.Remote, Fate: e.Fate.String(), Took: e.Took, Peer: l.labelOf(e.Peer), Address: printableText(e.Peer.Name()), Trace: e.Trace.String(),
			sinceLast: l.now - g.lastAt,
		}
		l.errors = append(l.errors, row)
	}
	c.mu.Unlock()
	slices.SortFunc(l.errors, func(a, b ErrorGroup) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Method, b.Method), strings.Compare(a.Kind, b.Kind), cmp.Compare(a.Code, b.Code))
	})
}

// newProcess returns the description of this process.
func (l *snapshotBuilder) newProcess() Process {
	p := Process{PID: os.Getpid(), Host: hostname(), Version: version(), Go: runtime.Version(), Since: l.p.begun, Ready: len(l.sources) > 0, Usage: l.usage}
	for _, s := range l.sources {
		if p.Name == "" {
			p.Name = s.name()
		}
		p.Ready = p.Ready && s.isReady()
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

// version returns the version of the program's main module, followed by its VCS revision.
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

// traceURL returns the URL returned by Page.TraceURL for a trace, or "" if there is none or its
// scheme is not allowed.
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
