package load

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// A Change is how one figure of a run differs from that of an earlier one.
type Change struct {
	Name   string   `json:"name"`
	Before float64  `json:"before"`
	Now    float64  `json:"now"`
	Ratio  float64  `json:"ratio"` // Now / Before
	Noise  *float64 `json:"ratio_plus_minus,omitempty"`
	Beyond bool     `json:"beyond_noise"` // Ratio is farther from 1 than Noise
}

// noiseSlices is how many slices a run must have for its noise to be estimated.
const noiseSlices = 5

// CompareWith puts into r, which is named now, how it differs from an earlier run of another name. Figures of runs with other settings
// mean different things, and are not compared.
func (r *Result) CompareWith(before *Result, beforeName, now string) {
	r.Before, r.Now = beforeName, now
	r.Settings, r.Changes = ChangedSettings(before, r), nil
	same := len(r.Settings) == 0
	if r.Compared = &same; same {
		r.Changes = Compare(before, r)
	}
}

// Compare returns how the figures of after differ from those of before. The noise of a figure is twice the standard error of the
// mean of its values in the slices, of both runs together, as a part of the value before; a change is beyond it when it is larger. The
// deviation of the values is estimated from the middle half of the slices, so that one slice with a stall does not hide every change. What
// differs from run to run, such as where memory lies, no run shows. A figure without slices, or of a run that was too short, has no noise,
// and its change is never beyond it.
func Compare(before, after *Result) []Change {
	var all []Change
	for _, f := range []struct {
		name  string
		whole func(*Result) float64
		slice func(*Slice) float64
	}{
		{"calls_per_s", func(r *Result) float64 { return r.CallsPerS }, func(s *Slice) float64 { return s.CallsPerS }},
		{"p50_us", func(r *Result) float64 { return r.Latency.P50 }, func(s *Slice) float64 { return s.P50 }},
		{"p90_us", func(r *Result) float64 { return r.Latency.P90 }, func(s *Slice) float64 { return s.P90 }},
		{"p99_us", func(r *Result) float64 { return r.Latency.P99 }, func(s *Slice) float64 { return s.P99 }},
		{"p99_9_us", func(r *Result) float64 { return r.Latency.P999 }, func(s *Slice) float64 { return s.P999 }},
		{"max_us", func(r *Result) float64 { return r.Latency.Max }, nil},
		{"failed_ratio", failedRatio, nil},
	} {
		c := Change{Name: f.name, Before: f.whole(before), Now: f.whole(after)}
		if c.Before != 0 {
			c.Ratio = c.Now / c.Before
		}
		if f.slice != nil && c.Before != 0 {
			b, okBefore := standardError(before.Slices, f.slice)
			a, okAfter := standardError(after.Slices, f.slice)
			if okBefore && okAfter {
				noise := 2 * math.Hypot(a, b) / c.Before
				c.Noise, c.Beyond = &noise, math.Abs(c.Ratio-1) > noise
			}
		}
		all = append(all, c)
	}
	return all
}

func failedRatio(r *Result) float64 { return float64(r.Failed) / float64(max(r.Calls, 1)) }

// normalSpread is the standard deviation of a normal distribution as a part of the distance between its quartiles.
const normalSpread = 0.7413

// standardError returns that of the mean of a figure over the whole slices of a run; ok is false when there are too few.
func standardError(all []Slice, of func(*Slice) float64) (se float64, ok bool) {
	var values []float64
	for i := range all {
		if s := &all[i]; s.Seconds >= 0.99*all[0].Seconds {
			values = append(values, of(s))
		}
	}
	if len(values) < noiseSlices {
		return 0, false
	}
	slices.Sort(values)
	return normalSpread * (quantile(values, 0.75) - quantile(values, 0.25)) / math.Sqrt(float64(len(values))), true
}

// quantile returns the value at a part q of sorted values, between two of them by their distance.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	i := min(int(at), len(sorted)-2)
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// seconds is a time in the words of the flags.
func seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Microsecond)
}

// ChangedSettings says in which settings two runs differ, so that their figures do not compare.
func ChangedSettings(before, after *Result) (all []string) {
	if before, after := before.loopText(), after.loopText(); before != after {
		all = append(all, fmt.Sprintf("%s before, now %s", before, after))
	}
	for _, s := range []struct {
		name          string
		before, after any
	}{
		{"method", before.Method, after.Method},
		{"nodes", len(before.Nodes), len(after.Nodes)},
		{"calls in flight", before.Concurrency, after.Concurrency},
		{"connections", before.Connections, after.Connections},
		{"timeout", seconds(before.Timeout), seconds(after.Timeout)},
		{"bytes of input", before.InputBytes, after.InputBytes},
		{"cores", before.Cores, after.Cores},
		{"system", before.System, after.System},
	} {
		if s.before != s.after {
			all = append(all, fmt.Sprintf("%s %v before, now %v", s.name, s.before, s.after))
		}
	}
	return all
}
