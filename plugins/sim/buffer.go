package sim

// Segment buffers are divided into size classes. Each is four times as large as the previous one.
const (
	bufClasses  = 7
	minBufSize  = 256
	maxFreeBufs = 1 << 20 // in bytes, per class
)

// allocBuffer returns a buffer of n bytes with undefined contents.
func (w *World) allocBuffer(n int) []byte {
	size := minBufSize
	for i := range w.freeBufs {
		if n <= size {
			if free := w.freeBufs[i]; len(free) > 0 {
				b := free[len(free)-1]
				w.freeBufs[i] = free[:len(free)-1]
				return b[:n]
			}
			return make([]byte, n, size)
		}
		size *= 4
	}
	return make([]byte, n)
}

// freeBuffer returns a buffer to its free list.
func (w *World) freeBuffer(b []byte) {
	size := minBufSize
	for i := range w.freeBufs {
		if cap(b) == size {
			if (len(w.freeBufs[i])+1)*size <= max(maxFreeBufs, size) {
				w.freeBufs[i] = append(w.freeBufs[i], b)
			}
			return
		}
		size *= 4
	}
}
