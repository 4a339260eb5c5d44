package memfd

import (
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	// FixedSize is the set of seals for memory whose size cannot change, which guarantees that its
	// pages cannot be removed from processes that map it.
	FixedSize = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	// OwnerWritable is the set of seals for memory that can be written only through mappings that
	// already exist, in any process. The system then also refuses to punch holes.
	OwnerWritable = FixedSize | unix.F_SEAL_FUTURE_WRITE
)

// Make returns n bytes that only this process can write, and a file descriptor with which other
// processes can map them. Pages are allocated on first use. Before Linux 5.1 the memory has only
// the FixedSize seals, and other processes can also write to it.
func Make(n int) (b []byte, fd int, err error) {
	fail := func(action string, err error) ([]byte, int, error) {
		return nil, -1, fmt.Errorf("%s of %d bytes: %w", action, n, err)
	}
	fd, err = unix.MemfdCreate("quicksilver", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL { // before Linux 6.3
		fd, err = unix.MemfdCreate("quicksilver", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return fail("create shared memory", err)
	}
	if err = unix.Ftruncate(fd, int64(n)); err == nil {
		b, err = unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		_ = unix.Close(fd)
		return fail("map shared memory", err)
	}
	if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, OwnerWritable|unix.F_SEAL_SEAL); err != nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, FixedSize|unix.F_SEAL_SEAL)
	}
	if err != nil {
		_ = unix.Close(fd)
		_ = unix.Munmap(b)
		return fail("seal shared memory", err)
	}
	return b, fd, nil
}

// Check returns an error unless the memory of fd has n bytes and all of the given seals.
func Check(fd, n, seals int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("stat shared memory: %w", err)
	}
	if st.Size != int64(n) {
		return fmt.Errorf("shared memory has %d bytes, want %d", st.Size, n)
	}
	got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return fmt.Errorf("read the seals of shared memory: %w", err)
	}
	if got&seals != seals {
		return fmt.Errorf("shared memory has seals %#x, want %#x", got, seals)
	}
	return nil
}

// Map maps the n bytes of fd read-only.
func Map(fd, n int) ([]byte, error) {
	b, err := unix.Mmap(fd, 0, n, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", n, err)
	}
	return b, nil
}

// Unmap unmaps *b and sets it to nil. It does nothing if *b is nil.
func Unmap(b *[]byte) {
	if *b != nil {
		_ = unix.Munmap(*b)
		*b = nil
	}
}
