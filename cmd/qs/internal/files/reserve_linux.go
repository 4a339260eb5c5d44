package files

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// requireRoom returns an error if the file system has too little free space for f to grow to size bytes.
func requireRoom(f *os.File, size int64) error {
	var disk unix.Statfs_t
	var file unix.Stat_t
	if unix.Fstatfs(int(f.Fd()), &disk) != nil || unix.Fstat(int(f.Fd()), &file) != nil || disk.Blocks == 0 || disk.Bsize < 1 {
		return nil
	}
	has := file.Blocks * 512
	if size <= has || uint64(size-has-1)/uint64(disk.Bsize) < disk.Bavail { // compare blocks, because some file systems report unlimited space, which overflows in bytes
		return nil
	}
	free := has + int64(disk.Bavail)*int64(disk.Bsize)
	needed := (size-1)>>20 + 1 // rounded up, whereas the free space is rounded down, so that needed is always the larger number in the message
	err := fmt.Errorf("need %d MiB, %d MiB are free: %w", needed, free>>20, unix.ENOSPC)
	return &os.PathError{Op: "reserve", Path: f.Name(), Err: err}
}

// reserveSpace reserves disk space for n bytes of f, starting at offset at, without changing the size of f. Subsequent
// writes are then faster. Some file systems do not support this.
func reserveSpace(f *os.File, at, n int64) error {
	err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, at, n)
	if errors.Is(err, unix.ENOSPC) {
		return &os.PathError{Op: "reserve", Path: f.Name(), Err: err}
	}
	return nil
}
