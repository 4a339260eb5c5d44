package sim

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The heap against a sorted slice.
func TestHeap(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		var q heap
		all := make([]event, 40)
		for i := range all {
			all[i].slow = rng.IntN(2) == 0
		}
		var oracle []*event
		for range 400 {
			switch ev := &all[rng.IntN(len(all))]; rng.IntN(4) {
			case 0, 1:
				q.set(ev, time.Duration(rng.IntN(20)))
				if !slices.Contains(oracle, ev) {
					oracle = append(oracle, ev)
				}
			case 2:
				q.unset(ev)
				oracle = slices.DeleteFunc(oracle, func(o *event) bool { return o == ev })
			default:
				if first := q.min(); first != nil {
					q.unset(first)
					slices.SortFunc(oracle, func(a, b *event) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.seq, b.seq)) })
					require.Same(t, oracle[0], first)
					oracle = oracle[1:]
				}
			}
			fast := 0
			for i, ev := range q.h {
				if ev.pos != i+1 {
					t.Fatalf("the event at %d says %d", i, ev.pos)
				}
				if !ev.slow {
					fast++
				}
			}
			require.Len(t, q.h, len(oracle))
			require.Equal(t, fast > 0, q.busy())
		}
	}
}

func TestClockLimit(t *testing.T) {
	w := NewWorld(Config{})
	require.Equal(t, forever, w.limitLocked())
	w.waiters = []*waiter{{5}, {3}, {9}}
	require.Equal(t, time.Duration(3), w.limitLocked())
	w.leaveLocked(w.waiters[1])
	require.Equal(t, time.Duration(5), w.limitLocked())
}
