package main

import (
	"io/fs"
	"os"
)

// isStdinGiven reports whether the standard input is a pipe or a file. A terminal and /dev/null are neither.
func isStdinGiven() bool {
	info, err := os.Stdin.Stat()
	return err == nil && (info.Mode().IsRegular() || info.Mode()&fs.ModeNamedPipe != 0)
}
