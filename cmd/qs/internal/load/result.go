package load

import (
	"cmp"
	"runtime"
	"slices"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// A Result holds the measurements of a run. Compare uses Results, which may have been read from their JSON form.
// Warm-up calls are counted only in WarmupCalls.
//
// Calls is the sum of Succeeded and Failed. It does not include Canceled, the number of calls that were in flight when
// the run was interrupted.
type Result struct {
	Method      string    `json:"method"`
	Nodes       []string  `json:"nodes"`
	Concurrency int       `json:"concurrency"`
	Connections int       `json:"connections_per_node"`
	TargetRate  float64   `json:"target_calls_per_s,omitempty"` // configured rate of an open loop
	InputBytes  int       `json:"input_bytes"`                  // mean size of the encoded inputs
	Timeout     float64   `json:"timeout_s"`
	Warmup      float64   `json:"warmup_s"`
	Began       time.Time `json:"began"`      // start time of the run, including the warm-up
	Version     string    `json:"qs_version"` // version of the program that measured
	Go          string    `json:"go"`
	System      string    `json:"system"`
	Cores       int       `json:"cores"`

	Seconds     float64 `json:"seconds"` // duration of the run, without the warm-up and without the wait for the last calls
	Interrupted bool    `json:"interrupted,omitempty"`
	WarmupCalls int64   `json:"warmup_calls"`
	Calls       int64   `json:"calls"`
	Succeeded   int64   `json:"succeeded"`
	Late        int64   `json:"succeeded_after_end"` // number of successful calls that completed after the end of the run; included in Succeeded but not in CallsPerS
	Failed      int64   `json:"failed"`
	Canceled    int64   `json:"canceled"` // number of calls in flight when the run was interrupted
	Unsent      int64   `json:"unsent"`   // number of open-loop calls that were due but not sent, because all calls were in flight

	CallsPerS    float64 `json:"calls_per_s"` // rate of calls that succeeded before the end of the run
	SentPerS     float64 `json:"sent_bytes_per_s"`
	ReceivedPerS float64 `json:"received_bytes_per_s"`

	Latency  Latencies    `json:"latency"` // latencies of successful calls
	Service  *Latencies   `json:"service_time,omitempty"`
	Failures *Latencies   `json:"failed_latency,omitempty"`
	Errors   []Failure    `json:"errors,omitempty"` // most frequent first
	ByNode   []NodeResult `json:"by_node,omitempty"`
	Slices   []Slice      `json:"slices"`                     // in chronological order
	Before   string       `json:"compared_before,omitempty"`  // name of the earlier Result, if it was compared with this one
	Now      string       `json:"compared_now,omitempty"`     // name of this Result
	Compared *bool        `json:"compared,omitempty"`         // whether the settings are equal; nil if there is no earlier Result
	Changes  []Change     `json:"changes,omitempty"`          // relative to the earlier Result, if the settings are equal
	Settings []string     `json:"changed_settings,omitempty"` // settings that differ from the earlier Result
}

// Latencies holds percentiles of the latencies in a histogram.
type Latencies struct {
	Calls int64   `json:"calls"`
	Min   float64 `json:"min_us"`
	Mean  float64 `json:"mean_us"`
	P50   float64 `json:"p50_us"`
	P90   float64 `json:"p90_us"`
	P99   float64 `json:"p99_us"`
	P999  float64 `json:"p99_9_us"`
	Max   float64 `json:"max_us"`
}

// A Failure counts the failed calls with the same code and the same fate.
type Failure struct {
	Count    int64  `json:"count"`
	Code     uint8  `json:"code"`
	Meaning  string `json:"meaning"`  // description of the code
	Fate     string `json:"fate"`     // "ran", "did_not_run" or "may_have_run"
	Answered bool   `json:"answered"` // the node returned the error; otherwise the caller detected it
	Example  string `json:"example"`  // text of the first error that was recorded
}

// A NodeResult holds the measurements of one node.
type NodeResult struct {
	Address   string `json:"address"`
	Succeeded int64  `json:"succeeded"`
	Failed    int64  `json:"failed"`
}

// A Slice holds the measurements of a part of the run. Its percentiles have two significant digits.
type Slice struct {
	At        float64 `json:"at_s"`
	Seconds   float64 `json:"seconds"`
	Ended     int64   `json:"ended"` // number of completed calls
	Calls     int64   `json:"calls"` // number of successful calls
	CallsPerS float64 `json:"calls_per_s"`
	P50       float64 `json:"p50_us"`
	P90       float64 `json:"p90_us"`
	P99       float64 `json:"p99_us"`
	P999      float64 `json:"p99_9_us"`
}

func toMicros(ns int64) float64 { return float64(ns) / 1e3 }

func latenciesOf(h *hdr.Histogram) Latencies {
	l := Latencies{Calls: h.TotalCount()}
	if l.Calls == 0 {
		return l
	}
	at := func(percent float64) float64 { return toMicros(min(h.ValueAtPercentile(percent), h.Max())) }
	l.Min, l.Mean, l.Max = toMicros(h.Min()), h.Mean()/1e3, toMicros(h.Max())
	l.P50, l.P90, l.P99, l.P999 = at(50), at(90), at(99), at(99.9)
	return l
}

// Settings returns a Result that contains the settings of c but no measurements.
func (c *Config) Settings() Result {
	return Result{
		Method: c.Method, Nodes: c.Nodes, Concurrency: c.Concurrency, Connections: c.Connections, TargetRate: c.Rate,
		InputBytes: meanSize(c.Inputs), Timeout: c.Timeout.Seconds(), Warmup: c.Warmup.Seconds(),
		Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.GOMAXPROCS(0),
	}
}

// newResult combines the measurements of the workers, whose drive methods must have returned.
func (r *run) newResult(workers []*worker) Result {
	cfg := &r.cfg
	res := cfg.Settings()
	rec := workers[0].rec
	for _, w := range workers[1:] {
		rec.merge(w.rec)
	}
	end := max(r.measuredTime(rec), 1)
	for _, w := range workers {
		for _, l := range w.lanes {
			if l.hasNoIdleCall {
				res.Unsent += l.countUnsent(rec.warmup + end)
			}
		}
	}
	res.Seconds = end.Seconds()
	res.WarmupCalls, res.Canceled = rec.warm, rec.canceled
	res.Succeeded, res.Failed = rec.latency.TotalCount(), rec.failed.TotalCount()
	res.Calls, res.Late = res.Succeeded+res.Failed, rec.late
	res.CallsPerS = float64(res.Succeeded-res.Late) / res.Seconds
	res.SentPerS, res.ReceivedPerS = float64(rec.sent)/res.Seconds, float64(rec.received)/res.Seconds
	res.Latency = latenciesOf(rec.latency)
	if cfg.Rate > 0 {
		l := latenciesOf(rec.service)
		res.Service = &l
	}
	if res.Failed > 0 {
		l := latenciesOf(rec.failed)
		res.Failures = &l
	}
	for _, f := range rec.failures {
		res.Errors = append(res.Errors, *f)
	}
	slices.SortFunc(res.Errors, func(a, b Failure) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Fate, b.Fate))
	})
	if len(rec.nodes) > 1 {
		res.ByNode = rec.nodes
	}
	res.Slices = rec.results(end)
	return res
}

// measuredTime returns the duration of the run, without the warm-up. It is Config.Duration, unless the run ended
// earlier because Count was reached or it was interrupted. For an open loop with Count, the duration includes the
// interval after the last call, as it includes that after every other call.
func (r *run) measuredTime(rec *recorder) time.Duration {
	if r.cfg.Count == 0 || rec.end > 0 && rec.latency.TotalCount()+rec.failed.TotalCount() < r.cfg.Count {
		return cmp.Or(rec.end, rec.lastEnd)
	}
	end := rec.lastEnd
	if r.cfg.Rate > 0 {
		end = max(end, r.dueTime(r.first+r.cfg.Count)-r.cfg.Warmup)
	}
	if rec.end > 0 {
		end = min(end, rec.end)
	}
	return end
}

func meanSize(inputs [][]byte) int {
	total := 0
	for _, in := range inputs {
		total += len(in)
	}
	return total / len(inputs)
}

// results returns the slices of the run before end.
func (rec *recorder) results(end time.Duration) []Slice {
	all := []Slice{}
	for at := time.Duration(0); at < end; at += rec.width {
		s := Slice{At: at.Seconds(), Seconds: min(rec.width, end-at).Seconds()}
		if i := int(at / rec.width); i < len(rec.slices) {
			if part := rec.slices[i]; part.latency != nil {
				l := latenciesOf(part.latency)
				s.Calls, s.P50, s.P90, s.P99, s.P999 = l.Calls, l.P50, l.P90, l.P99, l.P999
				s.CallsPerS = float64(s.Calls) / s.Seconds
			}
			s.Ended = s.Calls + rec.slices[i].failed
		}
		all = append(all, s)
	}
	return all
}
