package files

import (
	"os"

	"golang.org/x/sys/unix"
)

// populatePages makes n bytes of a mapped file, from at on, ready to be read: in one go, which takes a fraction of the time that
// a fault for every few pages does. It waits for the disk. What cannot be read is found by who reads it.
func populatePages(mapped []byte, at, n int64) {
	page := int64(os.Getpagesize())
	_ = unix.Madvise(mapped[at/page*page:at+n], unix.MADV_POPULATE_READ)
}

// adviseSequential tells the system that a mapped file is read from its beginning to its end.
func adviseSequential(mapped []byte) { _ = unix.Madvise(mapped, unix.MADV_SEQUENTIAL) }
