package slab

import "golang.org/x/sys/unix"

// releasePages immediately returns the pages of b to the system. The address range is left to the
// garbage collector, which would return the pages only later, because an idle process runs no
// collection for two minutes. If b does not start on a page boundary, madvise fails and the garbage
// collector returns the pages.
func releasePages(b []byte) { _ = unix.Madvise(b, unix.MADV_DONTNEED) }
