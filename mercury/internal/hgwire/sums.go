package hgwire

import (
	"encoding/binary"
	"hash/crc32"
	"sync/atomic"
)

// Sums are the checksums of a message with the flag Checksums.
type Sums struct {
	Header   uint16 // checksum of the header in the message
	expected uint16 // checksum of the header, as computed
	Payload  uint32 // checksum of the payload in the message
}

// parse parses the checksums, that of the header at b[at:], and returns the payload.
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

// A Verifier verifies the checksums of a peer. C sends no checksums, those of headers, or both, and a message does
// not contain which: so 0 means no checksum until another value has arrived, and is a checksum from then on. The zero
// Verifier is for a new peer. It is safe for concurrent use.
type Verifier struct{ header, payload atomic.Bool } // the peer has sent a checksum that is not 0

// Header reports whether the header of a message with these flags is undamaged.
func (v *Verifier) Header(s Sums, flags uint8) bool {
	if flags&Checksums == 0 {
		return !v.header.Load()
	}
	return verifySum(&v.header, uint32(s.Header), uint32(s.expected))
}

// Payload reports whether a payload, or the memory of its handle, is undamaged. C sends an old checksum with an empty
// payload, which is ignored.
func (v *Verifier) Payload(s Sums, payload []byte) bool {
	if len(payload) == 0 || s.Payload == 0 && !v.payload.Load() {
		return true
	}
	return verifySum(&v.payload, s.Payload, Sum(payload))
}

// verifySum compares a checksum with the expected one. seen is set once a checksum was sent.
func verifySum(seen *atomic.Bool, got, want uint32) bool {
	if got != want {
		return got == 0 && !seen.Load()
	}
	if got != 0 && !seen.Load() {
		seen.Store(true)
	}
	return true
}
