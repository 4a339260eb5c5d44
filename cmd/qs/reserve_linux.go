package main

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// reserve asks the file system for room for all of a file, without making it longer: a disk that is too small says so at
// the beginning, and writes are cheaper. Not every file system can do that.
func reserve(f *os.File, size int64) error {
	err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size)
	if errors.Is(err, unix.ENOSPC) {
		return &os.PathError{Op: "reserve", Path: f.Name(), Err: err}
	}
	return nil
}
