package main

import (
	"io/fs"
	"os"
)

// isStdinGiven reports whether standard input is a pipe or a file. It returns false for a terminal
// and for /dev/null.
func isStdinGiven() bool {
	info, err := os.Stdin.Stat()
	return err == nil && (info.Mode().IsRegular() || info.Mode()&fs.ModeNamedPipe != 0)
}
