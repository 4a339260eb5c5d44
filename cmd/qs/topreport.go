package main

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
)

// A gaugesSample holds the values of a program's gauges at one point in time.
type gaugesSample struct {
	at  time.Time
	all []inspect.Activity
}

// A topReport is the JSON form of a gaugesSample. It covers the calls in progress and those completed since the
// previous sample.
type topReport struct {
	Address  string          `json:"address"`
	Time     time.Time       `json:"time"`
	Seconds  float64         `json:"seconds"` // period over which rates and percentiles are computed; 0 for the first sample
	Contexts []contextReport `json:"contexts"`
	Calls    []callReport    `json:"calls"` // calls in progress, oldest first
	More     int             `json:"more_calls"`
	Methods  []methodReport  `json:"methods"`
	Peers    []trafficReport `json:"peers"`

	allMethods, allPeers int    // numbers before filtering
	noPeer               string // explanation, if no peer matches the filter
}

// A callReport describes a call, request or transfer in progress.
type callReport struct {
	Kind   string  `json:"kind"` // origin, target or transfer
	Method string  `json:"method"`
	Peer   string  `json:"peer"`
	State  string  `json:"state"`
	Age    float64 `json:"age_s"`
	Moved  int64   `json:"moved_bytes"`
	Size   int64   `json:"size_bytes"`
	Items  int64   `json:"items"` // number of items of a stream so far
}

// A methodReport is the JSON form of a method's statistics. They cover completed calls and the items of calls in
// progress.
type methodReport struct {
	Kind     string  `json:"kind"`
	Method   string  `json:"method"`
	Active   int     `json:"active"` // number of calls in progress
	Count    int64   `json:"count"`
	Rate     float64 `json:"rate_per_s"`
	Errors   float64 `json:"errors_per_s"`
	Items    float64 `json:"items_per_s"`
	Sent     float64 `json:"sent_bytes_per_s"`
	Received float64 `json:"received_bytes_per_s"`
	P50      float64 `json:"p50_us"`
	P90      float64 `json:"p90_us"`
	P99      float64 `json:"p99_us"`
	Max      float64 `json:"max_us"`
}

// A trafficReport is the JSON form of a peer. It holds the peer's identity, and statistics of completed calls and of
// the items of calls in progress.
type trafficReport struct {
	Name      string  `json:"name,omitempty"` // name that the peer claims
	Own       bool    `json:"own,omitempty"`  // the peer is this qs process
	Remote    string  `json:"remote,omitempty"`
	Address   string  `json:"address"`
	Transport string  `json:"transport"`
	Active    int     `json:"active"` // number of calls in progress
	Rate      float64 `json:"rate_per_s"`
	Errors    float64 `json:"errors_per_s"`
	Sent      float64 `json:"sent_bytes_per_s"`
	Received  float64 `json:"received_bytes_per_s"`
	Held      int     `json:"held_envelopes"`
	Queued    int     `json:"queued_messages"`

	label string
}

// newTopReport returns a report on the sample now. Rates cover the time since the sample before or, if before is nil,
// the time since the program began to count calls. The library's own RPCs are included only if all is true.
func newTopReport(address string, now, before *gaugesSample, all bool) *topReport {
	r := &topReport{Address: address, Time: now.at, Calls: []callReport{}, Methods: []methodReport{}, Peers: []trafficReport{}}
	gauges := make([]inspect.Gauges, len(now.all))
	own, at := findOwnCall(now)
	for i := range now.all {
		a := &now.all[i]
		gauges[i] = a.Gauges
		if i == at {
			gauges[i].Active = max(a.Active-1, 0)
		}
		since := &inspect.Activity{}
		if before != nil && i < len(before.all) && before.all[i].Watched <= a.Watched { // otherwise the counters were reset
			since = &before.all[i]
		}
		seconds := (a.Watched - since.Watched).Seconds()
		r.Seconds = max(r.Seconds, seconds)
		r.addCalls(a, all)
		r.addMethods(a, since, seconds, all)
		r.addPeers(a, since, seconds, own)
		r.addFlows(a, since, seconds, all)
	}
	r.allMethods, r.allPeers = len(r.Methods), len(r.Peers)
	r.Contexts = contextReports(gauges)
	slices.SortStableFunc(r.Calls, func(a, b callReport) int { return cmp.Compare(b.Age, a.Age) })
	return r
}

// findOwnCall finds the call that requested the sample. It returns the label of the calling peer and the index of the
// context that served the call, or -1 if there is no such call. If several such calls are in progress, label is empty.
func findOwnCall(l *gaugesSample) (label string, context int) {
	context = -1
	for i := range l.all {
		for _, c := range l.all[i].Calls {
			if c.Kind != inspect.EventTarget || c.RPC != inspect.GaugesRPC {
				continue
			}
			if context >= 0 {
				return "", context
			}
			label, context = c.Peer, i
		}
	}
	return label, context
}

func (r *topReport) addCalls(a *inspect.Activity, all bool) {
	r.More += a.More
	for _, c := range a.Calls {
		if all || !inspect.IsBuiltIn(c.RPC) {
			r.Calls = append(r.Calls, callReport{c.Kind.String(), c.RPC, c.Peer, c.State, c.Age.Seconds(), c.Moved, c.Size, c.Items})
		}
	}
}

func (r *topReport) addMethods(a, since *inspect.Activity, seconds float64, all bool) {
	type key struct {
		kind inspect.EventKind
		rpc  string
	}
	was := map[key]*inspect.MethodCount{}
	for i := range since.Methods {
		m := &since.Methods[i]
		was[key{m.Kind, m.RPC}] = m
	}
	for i := range a.Methods {
		m := &a.Methods[i]
		if !all && inspect.IsBuiltIn(m.RPC) {
			continue
		}
		w := was[key{m.Kind, m.RPC}]
		if w == nil {
			w = &inspect.MethodCount{}
		}
		times := maps.Clone(m.Times)
		for bucket, n := range w.Times {
			if times[bucket] -= n; times[bucket] <= 0 {
				delete(times, bucket)
			}
		}
		r.Methods = append(r.Methods, methodReport{
			Kind: m.Kind.String(), Method: m.RPC, Count: m.Count - w.Count,
			Rate: perSecond(m.Count-w.Count, seconds), Errors: perSecond(m.Errors-w.Errors, seconds),
			Sent: perSecond(m.Sent-w.Sent, seconds), Received: perSecond(m.Received-w.Received, seconds),
			P50: quantileOf(times, 0.5), P90: quantileOf(times, 0.9), P99: quantileOf(times, 0.99), Max: quantileOf(times, 1),
		})
	}
}

func (r *topReport) addPeers(a, since *inspect.Activity, seconds float64, own string) {
	now, was := map[string]inspect.PeerCount{}, map[string]inspect.PeerCount{}
	for _, p := range a.Traffic {
		now[p.Address] = p
	}
	for _, p := range since.Traffic {
		was[p.Address] = p
	}
	for _, p := range a.Peers {
		n, w := now[p.Address], was[p.Address]
		r.Peers = append(r.Peers, trafficReport{
			label: p.Label, Name: p.Process, Own: own != "" && p.Label == own, Remote: p.Remote, Address: p.Address, Transport: p.Transport, Held: p.Held, Queued: p.Queued,
			Rate: perSecond(n.Count-w.Count, seconds), Errors: perSecond(n.Errors-w.Errors, seconds),
			Sent: perSecond(n.Sent-w.Sent, seconds), Received: perSecond(n.Received-w.Received, seconds),
		})
	}
}

// addFlows adds the calls in progress, and the items that they transferred since the sample since, to the reports of
// their methods and peers. The bytes of the items are not included in the statistics of completed calls.
func (r *topReport) addFlows(a, since *inspect.Activity, seconds float64, all bool) {
	type key struct {
		kind      inspect.EventKind
		rpc, peer string
		id        uint64
	}
	was := map[key]*inspect.CallState{}
	for i := range since.Calls {
		c := &since.Calls[i]
		was[key{c.Kind, c.RPC, c.Peer, c.ID}] = c
	}
	for i := range a.Calls {
		c := &a.Calls[i]
		if !all && inspect.IsBuiltIn(c.RPC) || c.Kind == inspect.EventTransfer {
			continue
		}
		m := r.methodOf(c)
		m.Active++
		items, sent, received := 0.0, 0.0, 0.0
		if w := was[key{c.Kind, c.RPC, c.Peer, c.ID}]; c.Items > 0 && (w != nil || c.Age.Seconds() <= seconds) {
			if w == nil {
				w = &inspect.CallState{}
			}
			items, sent = perSecond(c.Items-w.Items, seconds), perSecond(c.Moved-w.Moved, seconds)
		}
		if c.In {
			sent, received = 0, sent
		}
		m.Items, m.Sent, m.Received = m.Items+items, m.Sent+sent, m.Received+received
		for i := range r.Peers {
			if p := &r.Peers[i]; p.label == c.Peer {
				p.Active++
				p.Sent, p.Received = p.Sent+sent, p.Received+received
				break
			}
		}
	}
}

// methodOf returns the report on a call's method. It adds a report if no call of the method has completed.
func (r *topReport) methodOf(c *inspect.CallState) *methodReport {
	for i := range r.Methods {
		if m := &r.Methods[i]; m.Kind == c.Kind.String() && m.Method == c.RPC {
			return m
		}
	}
	r.Methods = append(r.Methods, methodReport{Kind: c.Kind.String(), Method: c.RPC})
	return &r.Methods[len(r.Methods)-1]
}

func perSecond(n int64, seconds float64) float64 {
	if seconds <= 0 || n < 0 {
		return 0
	}
	return float64(n) / seconds
}

// quantileOf returns the quantile q of a histogram, in microseconds. The keys of times are values of
// inspect.TimeBucket, and its values are counts. If times is empty, quantileOf returns 0.
func quantileOf(times map[int]int64, q float64) float64 {
	total := int64(0)
	for _, n := range times {
		total += n
	}
	left := max(int64(math.Ceil(q*float64(total))), 1)
	for _, bucket := range slices.Sorted(maps.Keys(times)) {
		if left -= times[bucket]; left <= 0 {
			return toMicros(inspect.BucketTime(bucket))
		}
	}
	return 0
}

// Columns by which a report can be sorted.
const (
	byRate   = "rate"
	byErrors = "errors"
	byP50    = "p50"
	byP90    = "p90"
	byP99    = "p99"
	byMax    = "max"
	byIn     = "in"
	byOut    = "out"
	byName   = "name"
)

// sortOrders maps the values of --sort to sort orders. The values are the names of orders and columns, and common
// synonyms.
var sortOrders = map[string]string{
	byRate: byRate, "calls/s": byRate, byErrors: byErrors, "err/s": byErrors, byP50: byP50, byP90: byP90, byP99: byP99, "latency": byP99, "time": byP99,
	byMax: byMax, byIn: byIn, "in/s": byIn, byOut: byOut, "out/s": byOut, byName: byName, "method": byName,
}

// sortKeys lists the sort orders that the s key cycles through.
var sortKeys = []string{byRate, byP99, byErrors, byName}

// sort sorts the calls, methods and peers. Calls are sorted by age, oldest first, unless the order is by name. Peers
// have no latencies, so for orders by latency, peers are sorted by their number of waiting calls, most first.
func (r *topReport) sort(order string) {
	slices.SortStableFunc(r.Calls, func(a, b callReport) int {
		if order == byName {
			return cmp.Compare(a.Method, b.Method)
		}
		return cmp.Compare(b.Age, a.Age)
	})
	ofMethod := map[string]func(m *methodReport) float64{
		byRate: func(m *methodReport) float64 { return m.Rate }, byErrors: func(m *methodReport) float64 { return m.Errors },
		byP50: func(m *methodReport) float64 { return m.P50 }, byP90: func(m *methodReport) float64 { return m.P90 },
		byP99: func(m *methodReport) float64 { return m.P99 }, byMax: func(m *methodReport) float64 { return m.Max },
		byIn: func(m *methodReport) float64 { return m.Received }, byOut: func(m *methodReport) float64 { return m.Sent },
		byName: func(*methodReport) float64 { return 0 },
	}[order]
	slices.SortStableFunc(r.Methods, func(a, b methodReport) int {
		return cmp.Or(cmp.Compare(ofMethod(&b), ofMethod(&a)), cmp.Compare(a.Method, b.Method), cmp.Compare(a.Kind, b.Kind))
	})
	waiting := func(p *trafficReport) float64 { return float64(p.Held + p.Queued) }
	ofPeer := map[string]func(p *trafficReport) float64{
		byRate: func(p *trafficReport) float64 { return p.Rate }, byErrors: func(p *trafficReport) float64 { return p.Errors },
		byP50: waiting, byP90: waiting, byP99: waiting, byMax: waiting,
		byIn: func(p *trafficReport) float64 { return p.Received }, byOut: func(p *trafficReport) float64 { return p.Sent },
		byName: func(*trafficReport) float64 { return 0 },
	}[order]
	slices.SortStableFunc(r.Peers, func(a, b trafficReport) int {
		by := cmp.Compare(ofPeer(&b), ofPeer(&a))
		return cmp.Or(by, cmp.Compare(b.Sent+b.Received, a.Sent+a.Received), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Address, b.Address))
	})
}

// filter keeps only the rows that contain text. It matches methods by name, peers by name and address, and calls by
// method, peer and state. Peers of matching calls are also kept. If text is empty, filter keeps all rows.
func (r *topReport) filter(text string) {
	has := func(texts ...string) bool {
		return strings.Contains(strings.ToLower(strings.Join(texts, "\n")), strings.ToLower(text))
	}
	r.Calls = slices.DeleteFunc(r.Calls, func(c callReport) bool { return !has(c.Method, c.Peer, c.State) })
	r.Methods = slices.DeleteFunc(r.Methods, func(m methodReport) bool { return !has(m.Method) })
	calls := func(p trafficReport) bool {
		return slices.ContainsFunc(r.Calls, func(c callReport) bool { return c.Peer == p.label })
	}
	r.Peers = slices.DeleteFunc(r.Peers, func(p trafficReport) bool { return !has(p.Name, p.Remote, p.Address) && !calls(p) })
	if r.noPeer = ""; len(r.Peers) == 0 && r.allPeers > 0 {
		r.noPeer = fmt.Sprintf(": none has %q in its name, or a call with it under way", text)
	}
}
