package slab

import (
	"slices"
	"sync"
)

// A freeList holds the free buffers of one size class in the order in which they were last used.
type freeList struct {
	mu      sync.Mutex
	free    [][]byte
	minFree int // smallest len(free) since the last sweep
}

// push adds b to the list.
func (s *freeList) push(b []byte) {
	s.mu.Lock()
	s.free = append(s.free, b)
	s.mu.Unlock()
}

// pop removes and returns the most recently used buffer, at its full length, or nil if there is
// none.
func (s *freeList) pop() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := len(s.free) - 1
	if last < 0 {
		return nil
	}
	b := s.free[last]
	s.free[last] = nil
	s.free = s.free[:last]
	s.minFree = min(s.minFree, last)
	return b
}

// takeIdle removes and returns the buffers that have not been used since the last call. left
// reports whether others remain.
func (s *freeList) takeIdle() (idle [][]byte, left bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	idle = slices.Clone(s.free[:s.minFree]) // buffers used since the last call come after these
	s.free = slices.Delete(s.free, 0, s.minFree)
	s.minFree = len(s.free)
	return idle, s.minFree > 0
}
