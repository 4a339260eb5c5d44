package framing

import "sync/atomic"

// bufSize is the size of a pooled buffer in bytes.
const bufSize = 128 << 10

// Buffers is a pool of buffers shared by the streams of one context. A stream takes a buffer when
// it has bytes to read or write and returns it when it has none, so idle streams hold no buffer.
// The pool keeps at most 8 buffers (1 MiB) and leaves the others to the garbage collector. The zero
// value is ready to use. All methods are safe for concurrent use and take no lock.
type Buffers struct {
	free [8]atomic.Pointer[[bufSize]byte]
}

// get returns a free buffer, or a new one if none is free. Its contents are undefined.
func (s *Buffers) get() *[bufSize]byte {
	for i := range s.free {
		if s.free[i].Load() == nil {
			continue
		}
		if b := s.free[i].Swap(nil); b != nil {
			return b
		}
	}
	return new([bufSize]byte)
}

// put returns b to the pool, unless the pool is full.
func (s *Buffers) put(b *[bufSize]byte) {
	for i := range s.free {
		if s.free[i].Load() == nil && s.free[i].CompareAndSwap(nil, b) {
			return
		}
	}
}
