package pool

import (
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/internal/memfd"
)

// newChunk returns memory of size bytes; nil if the system has none that only this process can write.
func newChunk(size int) (*chunk, error) {
	b, fd, err := memfd.Make(size)
	switch {
	case err == nil:
	case isNone(err):
		return nil, nil
	default:
		return nil, err
	}
	c := &chunk{b: b, fd: fd}
	if memfd.Check(fd, size, memfd.Own) != nil { // before Linux 5.1
		c.close()
		return nil, nil
	}
	if err := c.fill(tableSize); err != nil {
		c.close()
		return nil, err
	}
	c.filled = tableSize
	return c, nil
}

// isNone reports whether an error of memfd.Make says that there is no such memory, or that it is forbidden.
func isNone(err error) bool {
	return errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)
}

// fill has the system give us memory up to end.
func (c *chunk) fill(end int) error {
	for {
		err := unix.Fallocate(c.fd, 0, int64(c.filled), int64(end-c.filled))
		switch err {
		case nil:
			return nil
		case unix.EINTR:
		default:
			return fmt.Errorf("%d bytes of shared memory: %w", end-c.filled, err)
		}
	}
}

// close gives c back. Peers that have mapped it keep it until they see that.
func (c *chunk) close() {
	if c.filled > 0 {
		atomic.StoreUint64(word(c.b, headGone), 1)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	memfd.Unmap(&c.b)
	_ = unix.Close(c.fd)
	c.fd = -1
}

// Descriptor returns a descriptor of a chunk, which is the caller's, and its size; ok is false if there is no such chunk.
func Descriptor(id uint32) (fd, size int, ok bool) {
	c := find(id)
	if c == nil {
		return -1, 0, false
	}
	c.mu.Lock() // not that of the pool, which Alloc holds while the system looks for memory
	defer c.mu.Unlock()
	if c.fd < 0 {
		return -1, 0, false
	}
	fd, err := unix.FcntlInt(uintptr(c.fd), unix.F_DUPFD_CLOEXEC, 0)
	return fd, len(c.b), err == nil
}
