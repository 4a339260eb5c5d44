package files

import (
	"os"

	"golang.org/x/sys/unix"
)

// populatePages makes n bytes of a mapped file, starting at at, ready to be read in a single step, which takes a
// fraction of the time of a page fault for every few pages. It blocks while the disk is read. Read errors are ignored;
// they recur when the bytes are accessed.
func populatePages(mapped []byte, at, n int64) {
	page := int64(os.Getpagesize())
	_ = unix.Madvise(mapped[at/page*page:at+n], unix.MADV_POPULATE_READ)
}

// adviseSequential advises the system that a mapped file will be read sequentially.
func adviseSequential(mapped []byte) { _ = unix.Madvise(mapped, unix.MADV_SEQUENTIAL) }
