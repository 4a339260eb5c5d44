package debug

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
)

// The percentiles of the page are those of the sorted list, to an eighth.
func TestQuantiles(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 10, 1000, 50_000} {
		p := &Page{}
		var all []time.Duration
		for range n {
			d := time.Duration(rng.Int64N(1 << rng.IntN(40)))
			all = append(all, d)
			p.Observe(&inspect.Event{RPC: "x", Took: d})
		}
		slices.Sort(all)
		m := p.Snapshot().Methods[0]
		for _, q := range []struct {
			share float64
			got   time.Duration
		}{{0.5, m.P50}, {0.9, m.P90}, {0.99, m.P99}} {
			want := all[max(int(q.share*float64(n)+0.5)-1, 0)]
			require.GreaterOrEqual(t, q.got, want, "%d of %d", n, len(all))
			require.LessOrEqual(t, q.got, want+want/8+1)
		}
		require.Equal(t, all[n-1], m.Most)
	}
	for i := range 8 * 61 {
		require.Equal(t, i, bucketOf(longest(i)))
	}
}

// TestTimesCountMany: more calls than 32 bits count, of one duration: seen within an hour or two by a busy process.
func TestTimesCountMany(t *testing.T) {
	t.Parallel()
	m := &Method{Most: time.Second, times: &times{}}
	m.times[bucketOf(time.Millisecond)] = math.MaxUint32
	m.times.add(time.Millisecond)
	m.times.add(time.Second)
	require.Less(t, m.quantile(0.99), 2*time.Millisecond)
}
