package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// A source is a file that is sent, from its beginning or from where a part ends.
type source struct {
	name  string
	f     *os.File
	stamp stamp
	sums  sums
}

func (d *disk) openSource(name string, sha bool) (*source, error) {
	name, err := inside(name)
	if err != nil {
		return nil, err
	}
	f, err := d.root.Open(name)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a file: %w", name, na.ErrInvalid)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return &source{name, f, stampOf(info), newSums(sha)}, nil
}

// seek prepares to send from the offset to, where the checksum is crc. An SHA-256 has to see the bytes before, a step of
// them in each call; seek returns how many are left.
func (s *source) seek(to int64, crc uint32) (left int64, err error) {
	if to < s.sums.at || to > s.stamp.Size {
		return 0, fmt.Errorf("%s: %d is not an offset to go on from: %w", s.name, to, na.ErrInvalid)
	}
	if s.sums.sha != nil {
		if err := s.sums.addFrom(s.f, min(to, s.sums.at+seekStep)); err != nil {
			return 0, s.changed(err)
		}
		if s.sums.at < to {
			return to - s.sums.at, nil
		}
	}
	s.sums.at, s.sums.crc = to, crc
	return 0, nil
}

// read gets the next bytes of the file into memory that transfers can use: the one place where the memory of a source
// comes from.
func (s *source) read(buf *buffer, n int64) error {
	b := buf.mem[:n]
	if _, err := s.f.ReadAt(b, s.sums.at); err != nil {
		return s.changed(err)
	}
	s.sums.add(b)
	return nil
}

// verify tells whether the file is still what it was when it was opened.
func (s *source) verify() error {
	info, err := s.f.Stat()
	if err == nil && !stampOf(info).sameData(s.stamp) {
		err = io.EOF
	}
	if err != nil {
		return s.changed(err)
	}
	return nil
}

func (s *source) changed(err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%s was changed while it was copied: copy it again when it is at rest: %w", s.name, na.ErrIO)
	}
	return err
}

func (s *source) close() { _ = s.f.Close() }
