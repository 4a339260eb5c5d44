package pool

import (
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/internal/memfd"
)

// newChunk returns a chunk of size bytes, or nil if the system cannot provide memory that only this
// process can write.
func newChunk(size int) (*chunk, error) {
	b, fd, err := memfd.Make(size)
	switch {
	case err == nil:
	case isUnsupported(err):
		return nil, nil
	default:
		return nil, err
	}
	c := &chunk{mem: b, fd: fd}
	if memfd.Check(fd, size, memfd.OwnerWritable) != nil { // before Linux 5.1
		c.close()
		return nil, nil
	}
	if err := c.populate(tableSize); err != nil {
		c.close()
		return nil, err
	}
	c.populated = tableSize
	return c, nil
}

// isUnsupported reports whether an error from memfd.Make means that the system does not support or
// does not permit such memory.
func isUnsupported(err error) bool {
	return errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)
}

// populate makes the system allocate the pages of c up to the offset end.
func (c *chunk) populate(end int) error {
	for {
		err := unix.Fallocate(c.fd, 0, int64(c.populated), int64(end-c.populated))
		switch err {
		case nil:
			return nil
		case unix.EINTR:
		default:
			return fmt.Errorf("%d bytes of shared memory: %w", end-c.populated, err)
		}
	}
}

// close releases c. Peers that have mapped it unmap it when they see headerReleased set.
func (c *chunk) close() {
	if c.populated > 0 {
		atomic.StoreUint64(word(c.mem, headerReleased), 1)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	memfd.Unmap(&c.mem)
	_ = unix.Close(c.fd)
	c.fd = -1
}

// Descriptor returns a duplicate of a chunk's file descriptor, which the caller must close, and the
// size of the chunk in bytes. ok is false if there is no such chunk.
func Descriptor(id uint32) (fd, size int, ok bool) {
	c := findChunk(id)
	if c == nil {
		return -1, 0, false
	}
	c.mu.Lock() // not the pool's lock, which Alloc holds while the system allocates memory
	defer c.mu.Unlock()
	if c.fd < 0 {
		return -1, 0, false
	}
	fd, err := unix.FcntlInt(uintptr(c.fd), unix.F_DUPFD_CLOEXEC, 0)
	return fd, len(c.mem), err == nil
}
