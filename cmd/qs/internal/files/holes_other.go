//go:build !unix

package files

import "io/fs"

// holesOf returns 0, because sparse files are not detected on this system.
func holesOf(fs.FileInfo) int64 { return 0 }
