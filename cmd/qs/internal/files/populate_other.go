//go:build !linux

package files

// populate and sequential do nothing: a mapped file is read page by page when it is touched.
func populatePages([]byte, int64, int64) {}
func adviseSequential([]byte)            {}
