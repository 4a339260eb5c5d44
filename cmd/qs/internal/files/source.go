package files

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/memfault"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A source is a file to be sent, starting at its beginning or at the end of the receiver's part. Data is sent directly
// from memory to which the file is mapped. If the file is small or cannot be mapped, data is read into a buffer first.
type source struct {
	name   string
	f      *os.File
	stamp  stamp
	sums   sums
	mapped *bulk.Handle // handle for the whole file; nil if the file is not mapped
}

// mapFrom is the minimum size, in bytes, of a file that is mapped. For smaller files, reading is faster.
const mapFrom = 1 << 20

func (d *disk) openSource(name string, sha bool) (*source, error) {
	name, err := cleanPath(name)
	if err != nil {
		return nil, err
	}
	f, info, err := d.open(name)
	if err != nil {
		return nil, err
	}
	return &source{name: name, f: f, stamp: stampOf(info), sums: newSums(sha)}, nil
}

// shareFile maps the file for transfers of hctx, unless the file is small or cannot be mapped.
func (s *source) shareFile(hctx *hg.Context, access bulk.Access) {
	if s.stamp.Size < mapFrom {
		return
	}
	m, err := bulk.MapFile(s.f, bulk.FileOptions{Length: s.stamp.Size})
	if err != nil {
		return // read the file instead
	}
	defer func() { _ = m.Close() }() // the handle keeps the file mapped
	h, err := m.Create(hctx, bulk.Options{Access: access, Eager: -1})
	if err != nil {
		return
	}
	s.mapped = h
	adviseSequential(h.Segments()[0])
}

// errOther is returned when a part belongs to a different source, although the two sources have equal stamps.
var errOther = fmt.Errorf("the partial file is of another source: %w", na.ErrChecksum)

// seek prepares to send the data that starts at offset to. It verifies that crc is the checksum of the data before that
// offset. Each call processes at most seekStep bytes and returns the number of bytes that remain. The caller must
// repeat the call until that number is 0.
func (s *source) seek(to int64, crc uint32) (left int64, err error) {
	if to < s.sums.at || to > s.stamp.Size {
		return 0, fmt.Errorf("%s: invalid offset %d to resume from: %w", s.name, to, na.ErrInvalid)
	}
	if err := s.sums.addFrom(s.f, min(to, s.sums.at+seekStep)); err != nil {
		return 0, s.changed(err)
	}
	if s.sums.at == to && s.sums.crc != crc {
		return 0, fmt.Errorf("%s: %w", s.name, errOther)
	}
	return to - s.sums.at, nil
}

// read returns memory that contains, starting at offset at, the next n bytes of the file. It adds the bytes to the
// checksums. If the file is not mapped, read copies the bytes to buf and returns the memory of buf.
func (s *source) read(buf *buffer, n int64) (mem *bulk.Handle, at int64, err error) {
	if s.mapped != nil {
		at = s.sums.at
		populatePages(s.mapped.Segments()[0], at, n)
		if !memfault.Read(s.mapped.Segments()[0][at:at+n], s.sums.add) {
			return nil, 0, s.changed(io.EOF)
		}
		return s.mapped, at, nil
	}
	b := buf.mem[:n]
	if _, err := s.f.ReadAt(b, s.sums.at); err != nil {
		return nil, 0, s.changed(err)
	}
	s.sums.add(b)
	return buf.h, 0, nil
}

// verify returns an error if the file has been modified since it was opened.
func (s *source) verify() error {
	info, err := s.f.Stat()
	if err == nil && !stampOf(info).isSameData(s.stamp) {
		err = io.EOF
	}
	if err != nil {
		return s.changed(err)
	}
	if n, _ := s.f.ReadAt(make([]byte, 1), s.stamp.Size); n > 0 {
		return s.wrongSize()
	}
	return nil
}

// changed returns the error for a failed read of the file. If err is io.EOF, the file was shorter than its reported
// size or has been modified.
func (s *source) changed(err error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	if info, err := s.f.Stat(); err == nil && stampOf(info).isSameData(s.stamp) {
		return s.wrongSize()
	}
	return newChangedError(s.name)
}

func (s *source) wrongSize() error {
	return fmt.Errorf("%s: the file size is %d bytes, but reading it returns a different number, as in /proc and /sys; copy the output of cat instead: %w",
		s.name, s.stamp.Size, na.ErrInvalid)
}

func newChangedError(name string) error {
	return fmt.Errorf("%s was modified during the copy; copy it again: %w", name, na.ErrIO)
}

// failureReason returns the reason for the failure err to send the file. If a concurrent modification of the file
// explains err, it returns an error that says so, and otherwise it returns err.
func (s *source) failureReason(err error) error {
	if errors.Is(err, na.ErrFault) || errors.Is(err, na.ErrChecksum) {
		if changed := s.verify(); changed != nil {
			return changed
		}
	}
	return err
}

// close closes the file. The caller must ensure that no read is in progress.
func (s *source) close() {
	if s.mapped != nil {
		_ = s.mapped.Close()
	}
	_ = s.f.Close()
}
