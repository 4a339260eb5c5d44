package main

import (
	"io/fs"
	"os"
)

// isStdinGiven reports whether standard input is a pipe or a file. Terminals and /dev/null do not
// count.
func isStdinGiven() bool {
	info, err := os.Stdin.Stat()
	return err == nil && (info.Mode().IsRegular() || info.Mode()&fs.ModeNamedPipe != 0)
}
