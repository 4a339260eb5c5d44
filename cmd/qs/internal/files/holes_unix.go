//go:build unix

package files

import (
	"io/fs"
	"syscall"
)

// holesOf returns how many bytes of a file are not stored on disk. It is 0 if the file is not
// sparse.
func holesOf(info fs.FileInfo) int64 {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() {
		return 0
	}
	const unit = 512 // unit of Blocks on every system
	return max(0, info.Size()-int64(st.Blocks)*unit)
}
