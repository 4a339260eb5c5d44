package sm

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/na"
)

const (
	seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	// ownSeals has every way to write but the mapping that is there refused, to the peer and to ourselves.
	ownSeals = seals | unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL
)

// makeMemory returns n bytes that only this process can write, ever, and a descriptor by which others map them. No page of them is
// there before it is used.
func makeMemory(n int) (b []byte, fd int, err error) {
	fail := func(what string, err error) ([]byte, int, error) {
		return nil, -1, na.WithText(na.ErrNoMemory, fmt.Sprintf("%s of %d bytes that can be shared: %v", what, n, err))
	}
	fd, err = unix.MemfdCreate("quicksilver", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL { // before Linux 6.3
		fd, err = unix.MemfdCreate("quicksilver", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return fail("make memory", err)
	}
	if err = unix.Ftruncate(fd, int64(n)); err == nil {
		b, err = unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		_ = unix.Close(fd)
		return fail("map memory", err)
	}
	if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, ownSeals); err != nil { // before Linux 5.1
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals|unix.F_SEAL_SEAL)
	}
	if err != nil {
		_ = unix.Close(fd)
		_ = unix.Munmap(b)
		return fail("seal memory", err)
	}
	return b, fd, nil
}

// mapMemory maps n bytes of a peer for reading, and closes fd. What could take them away later is refused.
func mapMemory(fd, n int) ([]byte, error) {
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Size != int64(n) {
		return nil, na.WithText(na.ErrProtocol, fmt.Sprintf("the peer shares %d bytes of memory, want %d", st.Size, n))
	}
	if got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil || got&seals != seals {
		return nil, na.WithText(na.ErrProtocol, fmt.Sprintf("the peer shares memory that it can take away: seals %#x, want %#x", got, seals))
	}
	b, err := unix.Mmap(fd, 0, n, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, na.WithText(na.ErrNoMemory, fmt.Sprintf("map %d bytes of the peer: %v", n, err))
	}
	return b, nil
}

// unmap gives memory back; nil is none.
func unmap(b *[]byte) {
	if *b != nil {
		_ = unix.Munmap(*b)
		*b = nil
	}
}
