package bulk

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// FileOptions say which part of a file is mapped and what for. The zero value maps all of it, to be read.
type FileOptions struct {
	// Write maps the file to be read and written; it has been opened for both then.
	Write bool
	// Offset and Length are in bytes and lie inside the file, which does not grow. A Length of zero means up to its end.
	Offset, Length int64
}

// A File is a file, or a part of one, mapped into memory, so that its bytes can be moved without a copy of them.
//
//	MapFile ─► File ── Create ─► Handle … its Close completes ─┐
//	             └── Close ────────────────────────────────────┴─► unmapped, when both have
//
// If somebody truncates the file, transfers of pages that are gone end with na.ErrFault on both sides, and nothing else is
// harmed; the rest of the last page that is there reads as zeroes. But code of the caller that touches what is gone,
// through Handle.Segments, dies of SIGBUS.
type File struct {
	name string
	data []byte // of what is mapped
	opts FileOptions
	raw  mapping

	mu     sync.Mutex // guards the fields below
	users  int        // handles that are not closed, calls under way, and 1 until Close
	closed bool
}

// MapFile maps f, which may be closed afterwards. The error matches hg.ErrInvalid when there is no such part of f or f
// is not a regular file, and errors.ErrUnsupported where files cannot be mapped, by the system or by their file system.
func MapFile(f *os.File, opts FileOptions) (*File, error) {
	bad := func(err error) (*File, error) { return nil, fmt.Errorf("bulk: map %s: %w", f.Name(), err) }
	info, err := f.Stat()
	if err != nil {
		return bad(err)
	}
	size := info.Size()
	switch {
	case !info.Mode().IsRegular():
		return bad(na.WithText(hg.ErrInvalid, "it is not a regular file"))
	case !na.InRange(opts.Offset, opts.Length, size):
		return bad(na.WithText(hg.ErrInvalid, fmt.Sprintf(
			"FileOptions.Offset is %d: %d bytes from there lie outside the file of %d bytes", opts.Offset, opts.Length, size)))
	}
	if opts.Length == 0 {
		opts.Length = size - opts.Offset
	}
	m := &File{name: f.Name(), opts: opts, users: 1}
	if opts.Length == 0 {
		return m, nil
	}
	if m.raw, m.data, err = mapFile(f, opts); err != nil {
		return bad(err)
	}
	return m, nil
}

// Len returns the number of bytes that are mapped.
func (f *File) Len() int64 { return f.opts.Length }

// Create makes a handle over what is mapped, which stays so until the handle has been closed. A handle cannot be closed
// after its context.
func (f *File) Create(hctx *hg.Context, opts Options) (*Handle, error) {
	if opts.Access.Can(WriteOnly) && !f.opts.Write {
		return nil, fmt.Errorf("bulk: create: %w", na.WithText(na.ErrPermission, f.name+" is mapped without FileOptions.Write"))
	}
	if err := f.use("create"); err != nil {
		return nil, err
	}
	h, err := Create(hctx, opts, f.data)
	if err != nil {
		return nil, errors.Join(err, f.unref())
	}
	h.freed = func() { _ = f.unref() }
	return h, nil
}

// Sync returns when everything that was written into the memory is on the disk.
func (f *File) Sync() error {
	if err := f.use("sync"); err != nil {
		return err
	}
	err := f.raw.sync()
	if err = errors.Join(err, f.unref()); err != nil {
		return fmt.Errorf("bulk: sync %s: %w", f.name, err)
	}
	return nil
}

// Close gives up f. The file is unmapped when every handle that was made of it has been closed and nobody uses the memory
// any more; Close does not wait for that. A second Close fails with hg.ErrClosed.
func (f *File) Close() error {
	f.mu.Lock()
	was := f.closed
	f.closed = true
	f.mu.Unlock()
	if was {
		return fmt.Errorf("bulk: close %s: %w", f.name, hg.ErrClosed)
	}
	return f.unref()
}

// use keeps the file mapped until leave.
func (f *File) use(what string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return fmt.Errorf("bulk: %s: %w", what, na.WithText(hg.ErrClosed, f.name+" was closed"))
	}
	f.users++
	return nil
}

func (f *File) unref() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.users--; f.users > 0 {
		return nil
	}
	f.data = nil
	if err := f.raw.unmap(); err != nil {
		return fmt.Errorf("bulk: unmap %s: %w", f.name, err)
	}
	return nil
}
