package hg

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSpareServices pushes records from many goroutines and pops them from one at a time: none is
// there twice, and none is lost below the limit.
func TestSpareServices(t *testing.T) {
	const many, rounds = 8, 200
	var q spareServices
	var mu sync.Mutex // as the lock of an endpoint
	var wg sync.WaitGroup
	for range many {
		wg.Go(func() {
			for range rounds {
				mu.Lock()
				s := q.pop()
				mu.Unlock()
				if s == nil {
					s = &service{}
				}
				s.errorTries++ // no other goroutine has it
				q.push(s)
			}
		})
	}
	wg.Wait()
	uses, seen := 0, map[*service]bool{}
	for s := q.pop(); s != nil; s = q.pop() {
		require.False(t, seen[s])
		seen[s] = true
		uses += s.errorTries
	}
	require.Equal(t, many*rounds, uses)
	require.LessOrEqual(t, len(seen), many)
	require.Zero(t, q.n.Load())
	for range maxSpare + 5 {
		q.push(&service{})
	}
	require.EqualValues(t, maxSpare, q.n.Load())
}

// TestKeptRecordsAreListed checks that records are in the list of those that may be open for as
// long as they are kept.
func TestKeptRecordsAreListed(t *testing.T) {
	c := &Context{}
	for range maxSpare + 5 {
		s := &service{ctx: c}
		c.addOpenLocked(&s.openEntry)
		c.keepSpare(s)
	}
	require.Len(t, c.allOpen(), maxSpare)
}
