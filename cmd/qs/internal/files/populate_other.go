//go:build !linux

package files

// populatePages and adviseSequential have no effect on this system. The pages of a mapped file are
// read when they are accessed.
func populatePages([]byte, int64, int64) {}
func adviseSequential([]byte)            {}
