package framing

import "sync/atomic"

// bufSize is the size of a buffer.
const bufSize = 128 << 10

// Buffers is the buffer pool that the streams of one context share. A stream takes a buffer when it
// has bytes to read or write and puts it back when it has none, so idle streams hold none. At most
// 8 buffers (1 MiB) are kept; the garbage collector frees the others. The zero value is ready. All
// methods may be called concurrently, and take no lock.
type Buffers struct {
	free [8]atomic.Pointer[[bufSize]byte]
}

// get returns a free buffer, or a new one. Its contents are undefined.
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

// put returns b to the pool, unless that is full.
func (s *Buffers) put(b *[bufSize]byte) {
	for i := range s.free {
		if s.free[i].Load() == nil && s.free[i].CompareAndSwap(nil, b) {
			return
		}
	}
}
