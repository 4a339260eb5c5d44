package na

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestQueueOracle(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	var q queue
	var want []*Op
	for range 5000 {
		if r.IntN(2) == 0 {
			op := &Op{}
			q.push(op)
			want = append(want, op)
		} else {
			got := q.pop()
			if len(want) == 0 {
				require.Nil(t, got)
			} else {
				require.Same(t, want[0], got)
				require.Nil(t, got.next)
				want = want[1:]
			}
		}
		require.EqualValues(t, len(want), q.len())
	}
	for _, op := range want {
		require.Same(t, op, q.pop())
	}
	require.Nil(t, q.pop())
	require.Nil(t, q.head)
	require.Nil(t, q.tail)
}

// Many push, many pop: each element comes out once, and those of one pusher in its order.
func TestQueueConcurrent(t *testing.T) {
	const pushers, each = 4, 2000
	var q queue
	var popped atomic.Int64
	var wg sync.WaitGroup
	var mu sync.Mutex // guards seen
	seen := map[*Op]bool{}
	for p := range pushers {
		wg.Go(func() {
			for i := range each {
				q.push(&Op{addr: MakeAddr("fake://x", p), result: Result{N: int64(i)}})
			}
		})
	}
	for range 3 {
		wg.Go(func() {
			last := [pushers]int64{-1, -1, -1, -1}
			for popped.Load() < pushers*each {
				op := q.pop()
				if op == nil {
					continue
				}
				popped.Add(1)
				p := op.addr.Target()
				if op.result.N <= last[p] {
					t.Errorf("element %d of %d came after %d", op.result.N, p, last[p])
				}
				last[p] = op.result.N
				mu.Lock()
				if seen[op] {
					t.Errorf("element %d of %d came twice", op.result.N, p)
				}
				seen[op] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.Len(t, seen, pushers*each)
	require.Zero(t, q.len())
}
