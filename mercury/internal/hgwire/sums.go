package hgwire

import (
	"encoding/binary"
	"hash/crc32"
	"sync/atomic"
)

// Sums are the checksums of a message with the flag Checksums.
type Sums struct {
	Header  uint16 // as it came
	want    uint16 // as it should be
	Payload uint32
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

// Sum is the checksum of a payload.
func Sum(payload []byte) uint32 { return crc32.Checksum(payload, castagnoli) }

// A Verifier verifies the checksums of a peer. C fills in none, those of headers, or both, and a message does not say which: so 0 is
// none until another one has come, and a checksum from then on. The zero Verifier has seen nothing. It is safe for concurrent use.
type Verifier struct{ header, payload atomic.Bool }

// Header reports whether the header of a message is as it was sent. flags are those of the message.
func (v *Verifier) Header(s Sums, flags uint8) bool {
	if flags&Checksums == 0 {
		return !v.header.Load()
	}
	return verify(&v.header, uint32(s.Header), uint32(s.want))
}

// Payload reports the same of a payload, or of what it is the handle of. C leaves an old checksum in front of a payload of no bytes.
func (v *Verifier) Payload(s Sums, payload []byte) bool {
	if len(payload) == 0 || s.Payload == 0 && !v.payload.Load() {
		return true
	}
	return verify(&v.payload, s.Payload, Sum(payload))
}

func verify(seen *atomic.Bool, got, want uint32) bool {
	if got != want {
		return got == 0 && !seen.Load()
	}
	if got != 0 && !seen.Load() {
		seen.Store(true)
	}
	return true
}
