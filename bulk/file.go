package bulk

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// FileOptions selects the part of a file to map. The zero value maps the whole file for reading.
type FileOptions struct {
	// Write maps the file for reading and writing. The file must have been opened for both.
	Write bool
	// Offset and Length are in bytes and must lie within the file. Mapping never extends the file.
	// A zero Length means the rest of the file.
	Offset, Length int64
}

// A File is a file, or a part of one, that is mapped into memory so that its bytes can be moved
// without being copied. Create returns handles to the mapped memory. The file is unmapped after
// Close, once every handle has been closed.
//
// If the file is truncated while it is mapped, transfers that touch the missing pages fail with
// na.ErrFault on both sides. Nothing else fails, and the rest of the last page reads as zeros.
// Program code that touches missing pages through Handle.Segments is killed by SIGBUS.
type File struct {
	name  string
	data  []byte // mapped part of the file
	opts  FileOptions
	pages mapping // whole pages that contain data

	mu     sync.Mutex // guards the fields below
	refs   int        // number of open handles and calls in progress, plus 1 until Close is called
	closed bool
}

// MapFile maps f into memory. The caller may close f afterward. The error matches hg.ErrInvalid if
// opts selects bytes outside the file or f is not a regular file, and errors.ErrUnsupported if the
// operating system or the file system does not support mapping.
func MapFile(f *os.File, opts FileOptions) (*File, error) {
	bad := func(err error) (*File, error) { return nil, fmt.Errorf("bulk: map %s: %w", f.Name(), err) }
	info, err := f.Stat()
	if err != nil {
		return bad(err)
	}
	size := info.Size()
	switch {
	case !info.Mode().IsRegular():
		return bad(na.WithText(hg.ErrInvalid, "not a regular file"))
	case !na.InRange(opts.Length, opts.Offset, size):
		return bad(na.WithText(hg.ErrInvalid, fmt.Sprintf(
			"%d bytes at FileOptions.Offset %d lie outside the file of %d bytes", opts.Length, opts.Offset, size)))
	}
	if opts.Length == 0 {
		opts.Length = size - opts.Offset
	}
	m := &File{name: f.Name(), opts: opts, refs: 1}
	if opts.Length == 0 {
		return m, nil
	}
	if m.pages, m.data, err = mapFile(f, opts); err != nil {
		return bad(err)
	}
	return m, nil
}

// Len returns the number of mapped bytes.
func (f *File) Len() int64 { return f.opts.Length }

// Create returns a new handle to the mapped bytes, which stay mapped until the handle is closed.
// The caller must close the handle before its context, because it cannot be closed afterward.
func (f *File) Create(hctx *hg.Context, opts Options) (*Handle, error) {
	if opts.Access.Can(WriteOnly) && !f.opts.Write {
		return nil, fmt.Errorf("bulk: create: %w", na.WithText(na.ErrPermission, f.name+" is mapped read-only"))
	}
	if err := f.acquire("create"); err != nil {
		return nil, err
	}
	h, err := Create(hctx, opts, f.data)
	if err != nil {
		return nil, errors.Join(err, f.release())
	}
	h.onClosed = func() { _ = f.release() }
	return h, nil
}

// Sync blocks until everything written to the mapped memory is on disk.
func (f *File) Sync() error {
	if err := f.acquire("sync"); err != nil {
		return err
	}
	err := f.pages.sync()
	if err = errors.Join(err, f.release()); err != nil {
		return fmt.Errorf("bulk: sync %s: %w", f.name, err)
	}
	return nil
}

// Close releases f. It does not wait: the file is unmapped once every handle returned by Create is
// closed and no transfer uses the memory. A second Close fails with hg.ErrClosed.
func (f *File) Close() error {
	f.mu.Lock()
	was := f.closed
	f.closed = true
	f.mu.Unlock()
	if was {
		return fmt.Errorf("bulk: close %s: %w", f.name, hg.ErrClosed)
	}
	return f.release()
}

// acquire keeps the file mapped until release is called. op names the operation in error messages.
func (f *File) acquire(op string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return fmt.Errorf("bulk: %s: %w", op, na.WithText(hg.ErrClosed, f.name+" was closed"))
	}
	f.refs++
	return nil
}

// release undoes one call to acquire. It unmaps the file when no reference remains.
func (f *File) release() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refs--
	if f.refs > 0 {
		return nil
	}
	f.data = nil
	if err := f.pages.unmap(); err != nil {
		return fmt.Errorf("bulk: unmap %s: %w", f.name, err)
	}
	return nil
}
