//go:build unix

package files

import (
	"io/fs"
	"syscall"
)

// holesOf returns the number of bytes of a file that are not stored on disk. It returns 0 for a
// file that is not sparse.
func holesOf(info fs.FileInfo) int64 {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() {
		return 0
	}
	const unit = 512 // unit of Blocks in bytes, on every system
	return max(0, info.Size()-int64(st.Blocks)*unit)
}
