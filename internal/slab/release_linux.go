package slab

import "golang.org/x/sys/unix"

// releasePages returns the pages of b to the system at once. The address range stays with the
// garbage collector, which would return the pages only later: an idle process runs no collection
// for two minutes. If b does not begin at a page, madvise fails and the collector returns the
// pages.
func releasePages(b []byte) { _ = unix.Madvise(b, unix.MADV_DONTNEED) }
