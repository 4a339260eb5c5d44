package load

import (
	"cmp"
	"runtime"
	"slices"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// A Result is the measurements of a run; Compare reads its JSON. Calls of the warm-up are in WarmupCalls alone.
//
// Calls = Succeeded + Failed, and beside them are those that ended with the run: Canceled.
type Result struct {
	Method      string    `json:"method"`
	Nodes       []string  `json:"nodes"`
	Concurrency int       `json:"concurrency"`
	Connections int       `json:"connections_per_node"`
	TargetRate  float64   `json:"target_calls_per_s,omitempty"` // of an open loop
	InputBytes  int       `json:"input_bytes"`                  // the mean, encoded
	Timeout     float64   `json:"timeout_s"`
	Warmup      float64   `json:"warmup_s"`
	Began       time.Time `json:"began"`      // the warm-up, if there was one
	Version     string    `json:"qs_version"` // of the program that has measured
	Go          string    `json:"go"`
	System      string    `json:"system"`
	Cores       int       `json:"cores"`

	Seconds     float64 `json:"seconds"` // that the run took, without the warm-up and the wait for the last calls
	Interrupted bool    `json:"interrupted,omitempty"`
	WarmupCalls int64   `json:"warmup_calls"`
	Calls       int64   `json:"calls"`
	Succeeded   int64   `json:"succeeded"`
	Late        int64   `json:"succeeded_after_end"` // of Succeeded: sent before the end of the run, and not in CallsPerS
	Failed      int64   `json:"failed"`
	Canceled    int64   `json:"canceled"` // in flight when the run was interrupted
	Unsent      int64   `json:"unsent"`   // due in an open loop, and not sent since Concurrency were in flight

	CallsPerS    float64 `json:"calls_per_s"` // that succeeded before the end
	SentPerS     float64 `json:"sent_bytes_per_s"`
	ReceivedPerS float64 `json:"received_bytes_per_s"`

	Latency  Latencies    `json:"latency"` // of calls that succeeded
	Service  *Latencies   `json:"service_time,omitempty"`
	Failures *Latencies   `json:"failed_latency,omitempty"`
	Errors   []Failure    `json:"errors,omitempty"` // the most frequent first
	ByNode   []NodeResult `json:"by_node,omitempty"`
	Slices   []Slice      `json:"slices"`                     // of the run, in order
	Before   string       `json:"compared_before,omitempty"`  // the name of an earlier Result, if one was given
	Now      string       `json:"compared_now,omitempty"`     // and of this one
	Compared *bool        `json:"compared,omitempty"`         // whether the settings are the same, if an earlier Result was given
	Changes  []Change     `json:"changes,omitempty"`          // from the earlier Result, if the settings are the same
	Settings []string     `json:"changed_settings,omitempty"` // likewise
}

// Latencies are the percentiles of a histogram.
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

// A Failure is the calls that failed with one code and one fate.
type Failure struct {
	Count    int64  `json:"count"`
	Code     uint8  `json:"code"`
	Meaning  string `json:"meaning"`  // of the code
	Fate     string `json:"fate"`     // "ran", "did_not_run" or "may_have_run"
	Answered bool   `json:"answered"` // the node said so; else it was found on this side
	Example  string `json:"example"`  // the text of the first one
}

// A NodeResult is the part of one node.
type NodeResult struct {
	Address   string `json:"address"`
	Succeeded int64  `json:"succeeded"`
	Failed    int64  `json:"failed"`
}

// A Slice is a part of the run. Percentiles have two significant digits.
type Slice struct {
	At        float64 `json:"at_s"`
	Seconds   float64 `json:"seconds"`
	Ended     int64   `json:"ended"` // calls
	Calls     int64   `json:"calls"` // that succeeded
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

// Settings returns a Result with the settings of a run of c, without measurements.
func (c *Config) Settings() Result {
	return Result{
		Method: c.Method, Nodes: c.Nodes, Concurrency: c.Concurrency, Connections: c.Connections, TargetRate: c.Rate,
		InputBytes: meanSize(c.Inputs), Timeout: c.Timeout.Seconds(), Warmup: c.Warmup.Seconds(),
		Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.GOMAXPROCS(0),
	}
}

// newResult sums up the measurements of the workers, which have ended.
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

// measuredTime returns when the run has ended, since the end of the warm-up: after Duration, unless Count or an interrupt has ended it before. The
// last call of an open loop with Count has its part of the time, as every other one has.
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

// results returns the slices of a run until end.
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
