package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// pipeHasData reports whether a pipe holds bytes that have not been read. It does not wait for them.
func pipeHasData(pipe *os.File) bool {
	n, err := unix.IoctlGetInt(int(pipe.Fd()), unix.TIOCINQ)
	return err == nil && n > 0
}
