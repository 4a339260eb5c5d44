package load

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRecorderSlices checks that slices grow with a run of unknown length, no call is lost, and
// recorders with slices of several widths add up.
func TestRecorderSlices(t *testing.T) {
	t.Parallel()
	fill := func(seconds int) *recorder {
		rec := newRecorder(Config{Nodes: []string{"a"}})
		for i := range 10 * seconds { // ten calls a second
			at := time.Duration(i)*100*time.Millisecond + time.Millisecond
			rec.record(&call{lane: &lane{}, due: at - time.Millisecond, bytes: 1}, at, 2)
		}
		return rec
	}
	requireEven := func(rec *recorder, end time.Duration, perSecond int64) {
		t.Helper()
		slices := rec.results(end)
		require.LessOrEqual(t, len(slices), maxSlices)
		require.Greater(t, len(slices), fewSlices-1)
		at := 0.0
		for _, s := range slices[:len(slices)-1] {
			require.InDelta(t, at, s.At, 1e-9)
			at += s.Seconds
			require.InDelta(t, float64(perSecond), s.CallsPerS, 0.1*float64(perSecond)+10)
			require.InDelta(t, 1000, s.P50, 10)
		}
		require.InDelta(t, end.Seconds(), at+slices[len(slices)-1].Seconds, 1e-9)
	}
	long, short := fill(300), fill(300)
	requireEven(long, 300*time.Second, 10)
	for range 3 {
		short.doubleSlices()
	}
	require.Greater(t, short.width, long.width)
	long.merge(short)
	require.Equal(t, int64(6000), long.latency.TotalCount())
	require.Equal(t, int64(6000), long.sent)
	require.Equal(t, int64(12000), long.received)
	require.Equal(t, int64(6000), long.nodes[0].Succeeded)
	total := int64(0)
	for _, s := range long.results(300 * time.Second) {
		total += s.Calls
	}
	require.Equal(t, int64(6000), total)

	short = fill(1)
	short.merge(fill(300))
	require.Equal(t, int64(3010), short.latency.TotalCount())
	requireEven(short, 300*time.Second, 10)
}

// TestRecorderEnd checks that calls that end after the run are in the latencies and not in the
// rate.
func TestRecorderEnd(t *testing.T) {
	t.Parallel()
	rec := newRecorder(Config{Nodes: []string{"a"}, Warmup: time.Second, Duration: 2 * time.Second, Rate: 1})
	c := &call{lane: &lane{}, bytes: 1}
	for due, took := range map[time.Duration]time.Duration{0: 2 * time.Second, time.Second: time.Second / 2, 2 * time.Second: time.Second} {
		c.due, c.sent = due, due+took/2
		rec.record(c, due+took, 1)
	}
	require.Equal(t, int64(1), rec.warm)
	require.Equal(t, int64(2), rec.latency.TotalCount())
	require.Equal(t, int64(1), rec.late)
	require.Equal(t, int64(1), rec.sent)
	require.InDelta(t, 1e9, rec.latency.Max(), 1e6)
	require.InDelta(t, 5e8, rec.service.Max(), 1e6)
	require.Len(t, rec.results(rec.end), fewSlices)

	rec.cut(1500 * time.Millisecond)
	require.Equal(t, 500*time.Millisecond, rec.end)
	rec.cut(2 * time.Second)
	require.Equal(t, 500*time.Millisecond, rec.end)
}
