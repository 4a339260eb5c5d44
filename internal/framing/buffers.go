package framing

import "sync/atomic"

// bufSize is the size of a buffer.
const bufSize = 128 << 10

// Buffers are the spare buffers that the streams of one context share. A stream takes one when it has bytes to read or to write, and gives it back
// when it has none, so idle streams hold none. At most 8 are kept, which is 1 MiB; of more that are given back the garbage collector
// frees the rest. The zero value is ready. All methods may be called concurrently, and take no lock.
type Buffers struct {
	spare [8]atomic.Pointer[[bufSize]byte]
}

// get returns a spare buffer, or a new one. Its content is what the stream before has left in it.
func (s *Buffers) get() *[bufSize]byte {
	for i := range s.spare {
		if s.spare[i].Load() == nil {
			continue
		}
		if b := s.spare[i].Swap(nil); b != nil {
			return b
		}
	}
	return new([bufSize]byte)
}

// put keeps b, unless there are enough.
func (s *Buffers) put(b *[bufSize]byte) {
	for i := range s.spare {
		if s.spare[i].Load() == nil && s.spare[i].CompareAndSwap(nil, b) {
			return
		}
	}
}
