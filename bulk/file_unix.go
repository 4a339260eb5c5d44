//go:build unix

package bulk

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A mapping is whole pages of a file in memory; nil if there are none.
type mapping []byte

// mapFile maps the pages around the part of f that opts select, and returns them and that part.
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
	// files of /sys, and file systems without a page cache
	case unix.ENODEV, unix.EINVAL, unix.ENOSYS, unix.EOPNOTSUPP:
		return nil, nil, na.WithText(na.ErrUnsupported,
			fmt.Sprintf("the file system does not support mapping: %v", failed))
	default:
		return nil, nil, os.NewSyscallError("mmap", failed)
	}
	return raw, raw[before:n:n], nil
}

// sync writes changed pages to the disk and waits for that.
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
