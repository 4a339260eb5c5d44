package timeheap

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type value struct {
	at    time.Duration
	seq   int
	index Index
}

// TestHeap checks the heap against a sorted slice.
func TestHeap(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 50 {
		var h Heap[value]
		all := make([]value, 40)
		var oracle []*value
		for seq := range 400 {
			v := &all[rng.IntN(len(all))]
			switch rng.IntN(4) {
			case 0, 1:
				v.at, v.seq = time.Duration(rng.IntN(20)), seq
				h.Set(v, &v.index, v.at)
				if !slices.Contains(oracle, v) {
					oracle = append(oracle, v)
				}
			case 2:
				h.Remove(&v.index)
				oracle = slices.DeleteFunc(oracle, func(o *value) bool { return o == v })
				require.Zero(t, v.index)
			default:
				first, at := h.First()
				if first == nil {
					require.Empty(t, oracle)
					continue
				}
				slices.SortFunc(oracle, func(a, b *value) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.seq, b.seq)) })
				require.Same(t, oracle[0], first)
				require.Equal(t, first.at, at)
				h.Remove(&first.index)
				oracle = oracle[1:]
			}
			require.ElementsMatch(t, oracle, slices.Collect(h.All()))
		}
	}
}

func TestHeapAllocatesNothing(t *testing.T) {
	var h Heap[value]
	all := make([]value, 20)
	round := func() {
		for i := range all {
			h.Set(&all[i], &all[i].index, time.Duration(i%7))
		}
		for v, _ := h.First(); v != nil; v, _ = h.First() {
			h.Remove(&v.index)
		}
	}
	round()
	require.Zero(t, testing.AllocsPerRun(100, round))
}

// TestHeapReleasesMemory checks that the memory of many users is released when they have ended.
func TestHeapReleasesMemory(t *testing.T) {
	for _, n := range []int{maxIdleCap / 2, 10 * maxIdleCap} {
		var h Heap[value]
		all := make([]value, n)
		for i := range all {
			h.Set(&all[i], &all[i].index, 1)
		}
		for i := range all {
			h.Remove(&all[i].index)
		}
		require.Equal(t, n > maxIdleCap, cap(h.slots) == 0)
	}
}
