package slab

import (
	"slices"
	"sync"
)

// A shelf has the buffers of a class that nobody uses, the one used last at the end.
type shelf struct {
	mu    sync.Mutex
	free  [][]byte
	least int // the smallest number of them since the last look
}

func (s *shelf) put(b []byte) {
	s.mu.Lock()
	s.free = append(s.free, b)
	s.mu.Unlock()
}

// take returns the buffer used last, whole, or nil.
func (s *shelf) take() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := len(s.free) - 1
	if last < 0 {
		return nil
	}
	b := s.free[last]
	s.free[last] = nil
	s.free = s.free[:last]
	s.least = min(s.least, last)
	return b
}

// idle removes the buffers that nobody has needed since the last call. left reports whether others remain.
func (s *shelf) idle() (idle [][]byte, left bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	idle = slices.Clone(s.free[:s.least]) // those that were used have been put behind them
	s.free = slices.Delete(s.free, 0, s.least)
	s.least = len(s.free)
	return idle, s.least > 0
}
