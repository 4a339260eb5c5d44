package framing

import "sync"

// bufSize is the size of a buffer.
const bufSize = 128 << 10

// spare holds buffers that no connection needs at the moment: an idle connection has none.
var spare spares

// maxSpare bounds the buffers that are kept: 2 MiB.
const maxSpare = 16

// spares is a list of spare buffers. Unlike a sync.Pool it gives back what was put in whichever processor asks, and
// keeps it over garbage collections.
type spares struct {
	mu   sync.Mutex // guards list
	list []*[bufSize]byte
}

func (s *spares) get() *[bufSize]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := len(s.list) - 1
	if last < 0 {
		return new([bufSize]byte)
	}
	b := s.list[last]
	s.list = s.list[:last]
	return b
}

func (s *spares) put(b *[bufSize]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.list) < maxSpare {
		s.list = append(s.list, b)
	}
}
