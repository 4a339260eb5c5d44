package files

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"slices"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sums holds the checksums of the first at bytes of a file. Both sides compute checksums of the bytes in memory and
// compare them after each piece.
type sums struct {
	at  int64
	crc uint32
	sha hash.Hash // nil unless SHA-256 checksums are requested
}

func newSums(sha bool) sums {
	var s sums
	if sha {
		s.sha = sha256.New()
	}
	return s
}

func (s *sums) add(b []byte) {
	s.at += int64(len(b))
	for page := range slices.Chunk(b, 4<<10) {
		prefetch(page)
		s.crc = crc32.Update(s.crc, castagnoli, page)
	}
	if s.sha != nil {
		s.sha.Write(b)
	}
}

// prefetch loads b into the processor's cache. Package crc32 reads alternately at three positions that are 1 KiB apart,
// and processors do not recognize this pattern. For data that is not cached, crc32 would take twice as long without
// prefetch.
func prefetch(b []byte) {
	var sum byte
	for at := 0; at < len(b); at += 64 {
		sum += b[at]
	}
	sink(sum)
}

// sink prevents the compiler from removing the reads in prefetch.
//
//go:noinline
func sink(byte) {}

// addFrom adds the bytes of r between the offsets s.at and to.
func (s *sums) addFrom(r io.ReaderAt, to int64) error {
	buf := make([]byte, min(1<<20, to-s.at))
	for s.at < to {
		b := buf[:min(int64(len(buf)), to-s.at)]
		if _, err := r.ReadAt(b, s.at); err != nil {
			return err
		}
		s.add(b)
	}
	return nil
}

func (s *sums) digest() []byte {
	if s.sha == nil {
		return nil
	}
	return s.sha.Sum(nil)
}

// String returns the name and value of the file's SHA-256 checksum or, if it was not requested, its CRC-32C checksum.
func (s *sums) String() string {
	if s.sha != nil {
		return "sha256:" + hex.EncodeToString(s.digest())
	}
	return fmt.Sprintf("crc32c:%08x", s.crc)
}
