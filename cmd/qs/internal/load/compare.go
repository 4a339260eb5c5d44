package load

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// A Change describes the difference of one figure between two runs.
type Change struct {
	Name   string   `json:"name"`
	Before float64  `json:"before"`
	Now    float64  `json:"now"`
	Ratio  float64  `json:"ratio"` // Now / Before
	Noise  *float64 `json:"ratio_plus_minus,omitempty"`
	Beyond bool     `json:"beyond_noise"` // Ratio differs from 1 by more than Noise
}

// noiseSlices is the minimum number of slices from which a run's noise is estimated.
const noiseSlices = 5

// CompareWith compares r with the earlier run before and stores the differences in r. The names of the runs are
// beforeName and now. If the runs have different settings, CompareWith stores only the settings that differ, because
// the figures cannot be compared.
func (r *Result) CompareWith(before *Result, beforeName, now string) {
	r.Before, r.Now = beforeName, now
	r.Settings, r.Changes = ChangedSettings(before, r), nil
	same := len(r.Settings) == 0
	if r.Compared = &same; same {
		r.Changes = Compare(before, r)
	}
}

// Compare returns the differences between the figures of two runs, each with an estimate of its noise.
//
// The noise of a figure is twice the standard error of the difference between its means over the slices of each run,
// relative to the earlier value. The standard deviation is estimated from the middle half of the slices, so that a
// single slice with a stall does not hide all changes. Differences that affect a whole run, such as memory placement,
// are not part of the noise.
//
// If a figure is not measured in slices, or a run has too few slices, Noise is nil and Beyond is false.
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

// normalSpread is the ratio of a normal distribution's standard deviation to its interquartile range.
const normalSpread = 0.7413

// standardError returns the standard error of a figure's mean over the slices of a run, without incomplete slices. If
// there are too few slices, ok is false.
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

// quantile returns the quantile q of sorted values. It interpolates linearly between neighboring values.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	i := min(int(at), len(sorted)-2)
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// seconds converts a number of seconds to a time.Duration.
func seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Microsecond)
}

// ChangedSettings returns descriptions of the settings that differ between two runs, because of which their figures
// cannot be compared.
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
