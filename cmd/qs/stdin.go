package main

import (
	"io"
	"io/fs"
	"os"
)

// stdinKind returns what of the standard input no argument reads: whether somebody has connected a pipe or a file at all, and whether
// there are bytes in it now. A terminal and /dev/null are neither.
func stdinKind() (given, hasData bool) {
	info, err := os.Stdin.Stat()
	switch {
	case err != nil:
		return false, false
	case info.Mode().IsRegular():
		at, err := os.Stdin.Seek(0, io.SeekCurrent)
		return true, err == nil && at < info.Size()
	case info.Mode()&fs.ModeNamedPipe != 0:
		return true, pipeHasData(os.Stdin)
	}
	return false, false
}
