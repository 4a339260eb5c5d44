//go:build unix

package bulk

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A mapping is a range of whole pages of a file, mapped into memory. It is nil if the range is
// empty.
type mapping []byte

// mapFile maps the pages that contain the part of f selected by opts. It returns all mapped pages
// and, as a slice of them, the selected part.
func mapFile(f *os.File, opts FileOptions) (mapping, []byte, error) {
	before := opts.Offset % int64(os.Getpagesize())
	n := before + opts.Length
	if int64(int(n)) != n {
		return nil, nil, na.WithText(hg.ErrInvalid, fmt.Sprintf("%d bytes exceed the address space", n))
	}
	prot := unix.PROT_READ
	if opts.Write {
		prot |= unix.PROT_WRITE
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	var raw []byte
	var failed error
	if err := conn.Control(func(fd uintptr) {
		raw, failed = unix.Mmap(int(fd), opts.Offset-before, int(n), prot, unix.MAP_SHARED)
	}); err != nil {
		return nil, nil, err
	}
	switch failed {
	case nil:
	// The file is in /sys, or its file system has no page cache.
	case unix.ENODEV, unix.EINVAL, unix.ENOSYS, unix.EOPNOTSUPP:
		return nil, nil, na.WithText(na.ErrUnsupported,
			fmt.Sprintf("the file system does not support mapping: %v", failed))
	default:
		return nil, nil, os.NewSyscallError("mmap", failed)
	}
	return raw, raw[before:n:n], nil
}

// sync writes modified pages to disk and blocks until they have been written.
func (m mapping) sync() error {
	if m == nil {
		return nil
	}
	return os.NewSyscallError("msync", unix.Msync(m, unix.MS_SYNC))
}

// unmap removes the mapping.
func (m mapping) unmap() error {
	if m == nil {
		return nil
	}
	return os.NewSyscallError("munmap", unix.Munmap(m))
}
