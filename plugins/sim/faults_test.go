package sim

import (
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
)

func TestExp(t *testing.T) {
	d := newRNG(1, 1)
	const n, mean = 200_000, time.Millisecond
	var sum time.Duration
	above := 0
	for range n {
		v := d.expDuration(mean)
		if v < 0 || v >= 50*mean {
			t.Fatalf("%v of a mean of %v", v, mean)
		}
		sum += v
		if v > mean {
			above++
		}
	}
	require.InDelta(t, 1, float64(sum)/n/float64(mean), 0.02)
	require.InDelta(t, 0.37, float64(above)/n, 0.03, "1/e of them are longer")
	require.Zero(t, d.expDuration(0))
	require.Less(t, d.expDuration(time.Hour), 50*time.Hour, "no overflow")
}

func TestLogUniform(t *testing.T) {
	d := newRNG(1, 2)
	for _, b := range [][2]time.Duration{{1, 1}, {1, 2}, {4096, 262144}, {0, 1000}, {5, 7}, {time.Nanosecond, time.Hour}} {
		small := 0
		for range 1000 {
			v := logUniform(b[0], b[1], d.pcg.Uint64())
			require.GreaterOrEqual(t, v, max(b[0], 1))
			require.LessOrEqual(t, v, b[1])
			if v*v <= max(b[0], 1)*b[1] {
				small++
			}
		}
		if b[1] == 262144 {
			require.InDelta(t, 500, small, 60, "half of them below the geometric middle")
		}
	}
	require.Zero(t, logUniform(0, 0, 7))
}

func TestBelow(t *testing.T) {
	d := newRNG(1, 3)
	seen := map[int]int{}
	for range 10_000 {
		seen[d.intn(10)]++
	}
	require.Len(t, seen, 10)
	for v, n := range seen {
		require.InDelta(t, 1000, n, 150, "%d", v)
	}
	require.Zero(t, d.intn(1))
	require.Zero(t, d.intn(0))
}

// TestDraw checks that each class of faults is on in half of the draws, in all combinations of two.
func TestDraw(t *testing.T) {
	most := Storm()
	require.NoError(t, most.validate())
	on := map[string]int{}
	both, either := 0, 0
	rng := rand.New(rand.NewPCG(7, 7))
	for range 1000 {
		f := most.Draw(rng)
		require.NoError(t, f.validate())
		v, m := reflect.ValueOf(f), reflect.ValueOf(most)
		for i := range v.NumField() {
			if !v.Field(i).IsZero() {
				on[v.Type().Field(i).Name]++
			}
			switch x := v.Field(i).Interface().(type) {
			case float64:
				require.LessOrEqual(t, x, m.Field(i).Float())
			case time.Duration:
				require.LessOrEqual(t, int64(x), m.Field(i).Int())
			}
		}
		if f.Reset > 0 && f.Clog > 0 {
			both++
		}
		if f.Reset > 0 || f.Clog > 0 {
			either++
		}
	}
	for _, name := range []string{"Jitter", "Refuse", "Reset", "Corrupt", "Clog", "Pause", "Partition", "Narrow", "Stall", "Silence", "Loss", "Duplicate",
		"Reorder", "Again"} {
		require.InDelta(t, 500, on[name], 60, name)
	}
	require.InDelta(t, 250, both, 50)
	require.InDelta(t, 750, either, 50)
	require.Zero(t, on["CorruptBulk"], "only if it is set")
	require.Equal(t, Faults{}, Faults{}.Draw(rng))
}

func TestBadConfig(t *testing.T) {
	for _, cfg := range []Config{
		{Level: 2}, {Latency: -1}, {Bandwidth: -1}, {Window: -1}, {PollCost: -1}, {Faults: Faults{Reset: 1.5}},
		{Faults: Faults{Clog: -1}}, {Faults: Faults{Jitter: -1}}, {Faults: Faults{Reset: 0.6, Corrupt: 0.6}},
		{Faults: Faults{Loss: 0.6, Reorder: 0.6}}, {Faults: Faults{Again: 2}}, {Faults: Faults{ReorderFor: -1}},
	} {
		err := cfg.validate()
		require.ErrorIs(t, err, na.ErrInvalid, "%+v", cfg)
		require.Panics(t, func() { NewWorld(cfg) })
	}
	require.Panics(t, func() { NewWorld(Config{}).SetFaults(Faults{Refuse: 2}) })
	err := (&Config{Latency: -1, Window: -1}).validate()
	require.ErrorContains(t, err, "Latency")
	require.ErrorContains(t, err, "Window")
}

func TestBuffers(t *testing.T) {
	w := NewWorld(Config{})
	for _, n := range []int{0, 1, 256, 257, 5000, 1 << 20, 2 << 20} {
		b := w.allocBuffer(n)
		require.Len(t, b, n)
		w.freeBuffer(b)
	}
	a := w.allocBuffer(100)
	w.freeBuffer(a)
	require.Same(t, &a[0], &w.allocBuffer(50)[0], "used again")
}
