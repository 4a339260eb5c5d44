package hgwire

import (
	"encoding/binary"
	"hash/crc32"
	"sync/atomic"
)

// Sums holds the checksums of a message with flag Checksums.
type Sums struct {
	Header   uint16 // header checksum found in the message
	expected uint16 // computed header checksum
	Payload  uint32 // payload checksum found in the message
}

// parse reads the checksums from the message b, with the header checksum at b[at:], and returns the payload.
func (s *Sums) parse(b []byte, at int, flags uint8) ([]byte, error) {
	size := HeaderSize(flags&Checksums != 0)
	if len(b) < size {
		return nil, errShort
	}
	if flags&Checksums != 0 {
		s.Header, s.Payload = binary.BigEndian.Uint16(b[at:]), binary.BigEndian.Uint32(b[coreSize+hashSize:])
	}
	return b[size:], nil
}

// Sum returns the checksum of a payload.
func Sum(payload []byte) uint32 { return crc32.Checksum(payload, castagnoli) }

// A Verifier verifies the checksums sent by a peer. C sends no checksums, only header checksums, or both, and a message
// does not indicate which. The value 0 therefore means that there is no checksum, until a different value arrives. From
// then on, 0 is treated as a checksum. The zero Verifier is ready to use with a new peer. It is safe for concurrent
// use.
type Verifier struct{ header, payload atomic.Bool } // whether the peer has sent a non-zero checksum

// Header reports whether the header of a message with the given flags is intact.
func (v *Verifier) Header(s Sums, flags uint8) bool {
	if flags&Checksums == 0 {
		return !v.header.Load()
	}
	return verifySum(&v.header, uint32(s.Header), uint32(s.expected))
}

// Payload reports whether a payload, or the memory to which its handle refers, is intact. It ignores the checksum of an
// empty payload, because C sends a stale one.
func (v *Verifier) Payload(s Sums, payload []byte) bool {
	if len(payload) == 0 || s.Payload == 0 && !v.payload.Load() {
		return true
	}
	return verifySum(&v.payload, s.Payload, Sum(payload))
}

// verifySum compares a received checksum with the expected one. It sets seen once a non-zero checksum has been
// received.
func verifySum(seen *atomic.Bool, got, want uint32) bool {
	if got != want {
		return got == 0 && !seen.Load()
	}
	if got != 0 && !seen.Load() {
		seen.Store(true)
	}
	return true
}
