package sim

// The buffers of segments come in classes, each four times as large as the one before.
const (
	bufClasses = 7
	bufFirst   = 256
	bufKept    = 1 << 20 // bytes of one class
)

// buffer returns n bytes.
func (w *World) buffer(n int) []byte {
	size := bufFirst
	for i := range w.bufs {
		if n <= size {
			if free := w.bufs[i]; len(free) > 0 {
				b := free[len(free)-1]
				w.bufs[i] = free[:len(free)-1]
				return b[:n]
			}
			return make([]byte, n, size)
		}
		size *= 4
	}
	return make([]byte, n)
}

// recycle takes a buffer back.
func (w *World) recycle(b []byte) {
	size := bufFirst
	for i := range w.bufs {
		if cap(b) == size {
			if (len(w.bufs[i])+1)*size <= max(bufKept, size) {
				w.bufs[i] = append(w.bufs[i], b)
			}
			return
		}
		size *= 4
	}
}
