package load

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// makeResult is a result whose rate and latencies vary over the slices by a part spread of them.
func makeResult(rate, us, spread float64, slices int) *Result {
	r := &Result{Method: "m", CallsPerS: rate, Latency: Latencies{P50: us, P90: us, P99: us, P999: us, Max: us}, Calls: 100}
	for i := range slices {
		part := 1 + spread*float64(i%2*2-1)
		r.Slices = append(r.Slices, Slice{Seconds: 1, CallsPerS: rate * part, P50: us * part, P90: us * part, P99: us * part, P999: us * part})
	}
	return r
}

func TestCompare(t *testing.T) {
	t.Parallel()
	of := func(name string, before, after *Result) Change {
		for _, c := range Compare(before, after) {
			if c.Name == name {
				return c
			}
		}
		t.Fatalf("no %s", name)
		return Change{}
	}
	steady, wild := makeResult(1000, 50, 0.01, 20), makeResult(1000, 50, 0.3, 20)
	require.False(t, of("calls_per_s", steady, steady).Beyond)
	require.True(t, of("calls_per_s", steady, makeResult(1050, 50, 0.01, 20)).Beyond)
	require.True(t, of("p99_us", steady, makeResult(1000, 45, 0.01, 20)).Beyond, "also when it is less")
	require.False(t, of("calls_per_s", steady, makeResult(1008, 50, 0.01, 20)).Beyond)
	require.False(t, of("calls_per_s", wild, makeResult(1150, 50, 0.01, 20)).Beyond, "the noise of the run before counts")
	require.False(t, of("calls_per_s", steady, makeResult(1150, 50, 0.3, 20)).Beyond, "and that of the run after")

	c := of("p50_us", steady, makeResult(1000, 100, 0.01, 20))
	require.Equal(t, 50.0, c.Before)
	require.Equal(t, 100.0, c.Now)
	require.Equal(t, 2.0, c.Ratio)
	require.InDelta(t, 2*normalSpread*0.02*2.236/math.Sqrt(20), *c.Noise, 1e-4, "twice the root of the squares")

	few := of("calls_per_s", steady, makeResult(5000, 50, 0.01, noiseSlices-1))
	require.Nil(t, few.Noise)
	require.False(t, few.Beyond)
	var compared Result
	compared.CompareWith(steady, "steady", "now")
	require.False(t, *compared.Compared, "another method")
	compared = *steady
	compared.CompareWith(steady, "steady", "now")
	require.True(t, *compared.Compared)
	require.Nil(t, of("max_us", steady, makeResult(1000, 5000, 0, 20)).Noise)

	stalled := makeResult(1000, 50, 0.01, 20)
	stalled.Slices[3].CallsPerS = 10
	require.True(t, of("calls_per_s", stalled, makeResult(1100, 50, 0.01, 20)).Beyond, "one slice does not hide a change")

	part := makeResult(1000, 50, 0.01, 20)
	part.Slices = append(part.Slices, Slice{Seconds: 0.1, CallsPerS: 1e6})
	require.Equal(t, of("calls_per_s", steady, steady), of("calls_per_s", steady, part), "a slice that is not whole does not count")
	require.Zero(t, of("p50_us", &Result{}, steady).Ratio)

	failing := makeResult(1000, 50, 0.01, 20)
	failing.Failed = 25
	require.Equal(t, 0.25, of("failed_ratio", steady, failing).Now)

	text, err := json.Marshal(failing)
	require.NoError(t, err)
	var back Result
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, *failing, back)
}

func TestChangedSettings(t *testing.T) {
	t.Parallel()
	one, two := makeResult(1000, 50, 0.01, 20), makeResult(2000, 50, 0.01, 20)
	require.Empty(t, ChangedSettings(one, two))
	two.Concurrency, two.Nodes, two.TargetRate, two.Timeout = 5, []string{"a"}, 100, 0.2
	require.Equal(t, []string{"closed loop before, now open loop at 100 calls/s", "nodes 0 before, now 1", "calls in flight 0 before, now 5", "timeout 0s before, now 200ms"}, ChangedSettings(one, two))
}

func TestQuantile(t *testing.T) {
	t.Parallel()
	values := []float64{1, 2, 4, 8, 16}
	for q, want := range map[float64]float64{0: 1, 0.25: 2, 0.5: 4, 0.625: 6, 0.75: 8, 1: 16} {
		require.Equal(t, want, quantile(values, q))
	}
}
