package slab

import "golang.org/x/sys/unix"

// release gives the pages of a buffer back to the system at once. Its address belongs to the garbage collector, as before: a process
// that is idle collects nothing for two minutes.
func release(b []byte) { _ = unix.Madvise(b, unix.MADV_DONTNEED) } // an address within a page is refused; then the collector does it
