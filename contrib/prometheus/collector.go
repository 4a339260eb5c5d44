// Package qsprom exports metrics of a program's classes to Prometheus. A Collector records counts and durations through
// hg.Config.Observe, and reads gauges from the classes passed to Show when Prometheus collects.
//
// It is a separate module so that the library does not depend on Prometheus.
package qsprom

import (
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
)

// A Collector is a prometheus.Collector. Its methods are safe for concurrent use.
type Collector struct {
	ended    *prometheus.CounterVec
	duration *prometheus.HistogramVec
	sent     *prometheus.CounterVec
	received *prometheus.CounterVec

	mu      sync.Mutex // guards the fields below
	classes []*hg.Class
	methods map[string]bool // methods with their own label
}

// maxMethods limits the number of values of the label method, because peers may call names that do not exist. The
// remaining methods share the value "(others)".
const maxMethods = 256

var sideAndMethod = []string{"side", "method"}

// New returns a Collector without classes.
func New() *Collector {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "quicksilver", Name: name, Help: help}, labels)
	}
	return &Collector{
		ended: counter("ended_total", "Calls at their origin, requests at their target, and transfers, that have ended.", "side", "method", "code"),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "quicksilver", Name: "duration_seconds", Help: "How long they took in all.",
			Buckets: prometheus.ExponentialBuckets(10e-6, 4, 12), // 10 µs to 42 s
		}, sideAndMethod),
		sent:     counter("sent_bytes_total", "Bytes of input, output or memory that this side has sent.", sideAndMethod...),
		received: counter("received_bytes_total", "Bytes of input, output or memory that this side has received.", sideAndMethod...),
		methods:  map[string]bool{},
	}
}

// Observe records an event. It is intended for hg.Config.Observe, or to be called by the function set there. It does
// not block.
func (c *Collector) Observe(e *inspect.Event) {
	side, method, code := e.Kind.String(), c.methodLabel(e.RPC), "ok"
	if e.Code != 0 {
		code = e.Code.Error()
	}
	c.ended.WithLabelValues(side, method, code).Inc()
	c.duration.WithLabelValues(side, method).Observe(e.Took.Seconds())
	c.sent.WithLabelValues(side, method).Add(float64(e.Sent))
	c.received.WithLabelValues(side, method).Add(float64(e.Received))
}

func (c *Collector) methodLabel(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.methods[name] {
		if len(c.methods) >= maxMethods {
			return "(others)"
		}
		c.methods[name] = true
	}
	return name
}

// Show adds a class. Its contexts, including those created later, are exported from then on.
func (c *Collector) Show(class *hg.Class) {
	c.mu.Lock()
	c.classes = append(c.classes, class)
	c.mu.Unlock()
	for _, hctx := range class.Contexts() {
		hctx.Calls() // starts tracking the age of requests
	}
}

// A contextMetric is a metric whose value is read from a context's statistics.
type contextMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(s *hg.Stats) float64
}

func newDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName("quicksilver", "", name), help, []string{"address", "context"}, nil)
}

var contextMetrics = []contextMetric{
	{newDesc("peers", "Sessions that are up."), prometheus.GaugeValue, func(s *hg.Stats) float64 { return float64(s.NA.Peers) }},
	{newDesc("peers_lost_total", "Peers that died, fell silent or were given up, without having closed the session."), prometheus.CounterValue, func(s *hg.Stats) float64 { return float64(s.NA.PeersLost) }},
	{newDesc("peers_left_total", "Peers that closed the session."), prometheus.CounterValue, func(s *hg.Stats) float64 { return float64(s.NA.PeersLeft) }},
	{newDesc("peers_retired_total", "Sessions of which a certificate has expired, so that what began afterwards went in another one."), prometheus.CounterValue, func(s *hg.Stats) float64 { return float64(s.NA.PeersRetired) }},
	{newDesc("peers_idle_total", "Sessions that ended because they were idle, as both sides agreed."), prometheus.CounterValue, func(s *hg.Stats) float64 { return float64(s.NA.PeersIdle) }},
	{newDesc("handlers_active", "Requests whose handlers have begun and that have not ended."), prometheus.GaugeValue, func(s *hg.Stats) float64 { return float64(s.Active) }},
	{newDesc("streams_open", "Requests with streams that have not ended."), prometheus.GaugeValue, func(s *hg.Stats) float64 { return float64(s.Streams) }},
	{newDesc("requests_waiting", "Requests that wait for another one to end."), prometheus.GaugeValue, func(s *hg.Stats) float64 { return float64(s.Waiting) }},
	{newDesc("queued", "Callbacks and handlers that wait to be run."), prometheus.GaugeValue, func(s *hg.Stats) float64 { return float64(s.Queued) }},
	{newDesc("handles", "Handles that are not closed, and requests that have not ended."), prometheus.GaugeValue, func(s *hg.Stats) float64 { return float64(s.Handles) }},
	{newDesc("lent_bytes", "Bytes of input and output lent to peers."), prometheus.GaugeValue, func(s *hg.Stats) float64 { return float64(s.Lent) }},
	{newDesc("pulled_bytes", "Bytes of input and output being fetched from peers."), prometheus.GaugeValue, func(s *hg.Stats) float64 { return float64(s.Pulled) }},
	{newDesc("reserved_bytes", "Bytes of envelopes and room guaranteed to peers."), prometheus.GaugeValue, func(s *hg.Stats) float64 { return float64(s.NA.Reserved) }},
	{newDesc("regions", "Registered memory of the class."), prometheus.GaugeValue, func(s *hg.Stats) float64 { return float64(s.NA.Regions) }},
	{newDesc("envelopes_high_water", "The envelopes that the program has really needed of a peer."), prometheus.GaugeValue, func(s *hg.Stats) float64 { return float64(s.NA.HighWater) }},
	{newDesc("stalls_total", "Messages that had to wait for an envelope, or failed for want of one."), prometheus.CounterValue, func(s *hg.Stats) float64 { return float64(s.NA.Stalls) }},
	{newDesc("violations_total", "Peers that were cut because they broke the protocol."), prometheus.CounterValue, func(s *hg.Stats) float64 { return float64(s.NA.Violations) }},
	{newDesc("denied_total", "Requests that the authorizer has denied."), prometheus.CounterValue, func(s *hg.Stats) float64 { return float64(s.Denied) }},
	{newDesc("tls_handshakes_failed_total", "TLS handshakes of peers that connected and that failed."), prometheus.CounterValue, func(s *hg.Stats) float64 { return float64(s.NA.HandshakesFailed) }},
	{newDesc("one_way_dropped_total", "One-way requests that could not be served."), prometheus.CounterValue, func(s *hg.Stats) float64 { return float64(s.Dropped) }},
}

var oldestDesc = prometheus.NewDesc("quicksilver_oldest_seconds", "Age of the oldest that is under way; 0 if nothing is.", []string{"address", "context", "side"}, nil)

// Descriptions of the stream limits and of the largest number of streams of one peer.
var (
	maxStreamsDesc        = newDesc("streams_limit", "How many streams_open there may be: hg.Config.MaxStreams.")
	maxStreamsPerPeerDesc = newDesc("streams_peer_limit", "How many of them one peer may have: hg.Config.MaxStreamsPerPeer.")
	mostStreamsOfPeerDesc = newDesc("streams_peer_most", "How many of them the peer has that has most.")
)

// observedMetrics returns the metrics that Observe updates.
func (c *Collector) observedMetrics() []prometheus.Collector {
	return []prometheus.Collector{c.ended, c.duration, c.sent, c.received}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, v := range c.observedMetrics() {
		v.Describe(to)
	}
	for _, r := range contextMetrics {
		to <- r.desc
	}
	for _, d := range []*prometheus.Desc{oldestDesc, maxStreamsDesc, maxStreamsPerPeerDesc, mostStreamsOfPeerDesc} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	for _, v := range c.observedMetrics() {
		v.Collect(to)
	}
	c.mu.Lock()
	classes := slices.Clone(c.classes)
	c.mu.Unlock()
	for _, class := range classes {
		for _, hctx := range class.Contexts() {
			collectContext(hctx, to)
		}
		for _, g := range class.Gauges() {
			most := int64(0)
			for _, p := range g.Peers {
				most = max(most, p.Streams)
			}
			gauge := func(d *prometheus.Desc, v float64) {
				to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, g.Address, strconv.Itoa(g.Context))
			}
			gauge(maxStreamsDesc, float64(g.MaxStreams))
			gauge(maxStreamsPerPeerDesc, float64(g.MaxStreamsPerPeer))
			gauge(mostStreamsOfPeerDesc, float64(most))
		}
	}
}

func collectContext(hctx *hg.Context, to chan<- prometheus.Metric) {
	s, address, id := hctx.Stats(), hctx.Self().String(), strconv.Itoa(hctx.ID())
	for _, r := range contextMetrics {
		to <- prometheus.MustNewConstMetric(r.desc, r.kind, r.value(&s), address, id)
	}
	var ages [3]time.Duration
	for _, i := range hctx.Calls() {
		ages[i.Kind%3] = max(ages[i.Kind%3], i.Age)
	}
	for kind, age := range ages {
		to <- prometheus.MustNewConstMetric(oldestDesc, prometheus.GaugeValue, age.Seconds(), address, id, inspect.EventKind(kind).String())
	}
}
