package files

import (
	"os"

	"golang.org/x/sys/unix"
)

// populatePages loads n bytes of a mapped file, starting at offset at, into memory. A single call is much faster than
// the page faults that it avoids. It blocks while the disk is read. It ignores read errors, which recur when the bytes
// are accessed.
func populatePages(mapped []byte, at, n int64) {
	page := int64(os.Getpagesize())
	_ = unix.Madvise(mapped[at/page*page:at+n], unix.MADV_POPULATE_READ)
}

// adviseSequential informs the kernel that a mapped file is read sequentially.
func adviseSequential(mapped []byte) { _ = unix.Madvise(mapped, unix.MADV_SEQUENTIAL) }
