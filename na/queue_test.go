package na

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// pop takes the first task and leaves the rest, as Trigger does.
func (q *queue) pop() *Task {
	t := q.take()
	if t == nil {
		return nil
	}
	if rest := t.next; rest != nil {
		t.next = nil
		q.putBack(rest)
	}
	q.n.Add(-1)
	return t
}

// TestQueueOracle checks that one goroutine gets tasks in the order in which they were pushed,
// however many it takes and leaves between.
func TestQueueOracle(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	var q queue
	var want []*Task
	for range 5000 {
		if r.IntN(2) == 0 {
			task := &Task{}
			q.push(task)
			want = append(want, task)
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
	for _, task := range want {
		require.Same(t, task, q.pop())
	}
	require.Nil(t, q.pop())
	require.Zero(t, q.len())
}

// TestQueueConcurrent checks that with many goroutines that push, take and leave each task is taken
// once.
func TestQueueConcurrent(t *testing.T) {
	const pushers, each = 4, 2000
	var q queue
	var popped atomic.Int64
	var wg sync.WaitGroup
	var mu sync.Mutex // guards seen
	seen := map[*Task]bool{}
	for range pushers {
		wg.Go(func() {
			for range each {
				q.push(&Task{})
			}
		})
	}
	for range 3 {
		wg.Go(func() {
			for popped.Load() < pushers*each {
				task := q.pop()
				if task == nil {
					continue
				}
				popped.Add(1)
				mu.Lock()
				if seen[task] {
					t.Error("a task was taken twice")
				}
				seen[task] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.Len(t, seen, pushers*each)
	require.Zero(t, q.len())
}
