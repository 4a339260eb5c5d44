package hgwire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
)

// Flags of requests and responses.
const (
	More      = 1    // the payload is a handle of the memory that contains the input or output
	NoReply   = 2    // the request has no response
	Checksums = 0x80 // the sender was built with checksums, so the header is 4 bytes longer
)

// Protocol is the supported version of the headers, and Magic is the byte that precedes it.
const (
	Protocol = 5
	Magic    = 0xd7
)

// SourceSize is the length in bytes of the sender's address, which precedes each request.
const SourceSize = 16

// AppendSource appends a, the address of the sender of an unexpected message. a must be an IPv4 address.
func AppendSource(b []byte, a netip.AddrPort) []byte {
	ip := a.Addr().As4()
	b = append(b, 2, 0) // AF_INET, little-endian
	b = binary.BigEndian.AppendUint16(b, a.Port())
	b = append(b, ip[:]...)
	return append(b, 0, 0, 0, 0, 0, 0, 0, 0)
}

// ParseSource returns the address of the sender of an unexpected message, as stated by the sender, and the rest of the
// message.
func ParseSource(b []byte) (netip.AddrPort, []byte, error) {
	if len(b) < SourceSize {
		return netip.AddrPort{}, nil, errShort
	}
	if b[0] != 2 || b[1] != 0 {
		return netip.AddrPort{}, nil,
			fmt.Errorf("hgwire: sender address family is %d, want 2 (IPv4)", binary.LittleEndian.Uint16(b))
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:])), b[SourceSize:], nil
}

const coreSize, hashSize, payloadHash = 12, 4, 4

// HeaderSize returns the length in bytes of the header of a request or response.
func HeaderSize(checksums bool) int {
	if checksums {
		return coreSize + hashSize + payloadHash
	}
	return coreSize + payloadHash
}

// A Request is the header of a request.
type Request struct {
	ID     uint64
	Flags  uint8
	Cookie uint8 // index of the context at the origin
	Sums   Sums
}

// A Response is the header of a response.
type Response struct {
	Code   int8 // hg_return_t
	Flags  uint8
	Cookie uint16
	Sums   Sums
}

// Append appends r and payload to b. If flag Checksums is set, it includes the checksums of both, which a peer verifies
// if it is configured to. If flag More is also set, the checksum of the payload is r.Sums.Payload, which is that of the
// memory to which the handle refers.
func (r *Request) Append(b, payload []byte) []byte {
	at := len(b)
	b = append(b, Magic, Protocol)
	b = binary.BigEndian.AppendUint64(b, r.ID)
	b = append(b, r.Flags, r.Cookie)
	if r.Flags&Checksums != 0 {
		b = binary.BigEndian.AppendUint16(b, requestChecksum(b[at:]))
		b = append(b, 0, 0)
	}
	return appendPayload(b, payload, r.Flags, r.Sums.Payload)
}

// requestChecksum returns the checksum of the request header at the beginning of b.
func requestChecksum(b []byte) uint16 {
	sum := crc16(0, b[:2])
	for i := 9; i > 1; i-- { // C computes it over the ID in host byte order, which is little-endian
		sum = crc16Byte(sum, b[i])
	}
	return crc16(sum, b[10:coreSize])
}

// Append appends r and payload to b. It handles checksums like Request.Append.
func (r *Response) Append(b, payload []byte) []byte {
	at := len(b)
	b = append(b, uint8(r.Code), r.Flags)
	b = binary.BigEndian.AppendUint16(b, r.Cookie)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0)
	if r.Flags&Checksums != 0 { // C leaves 4 bytes unused after the header, and stores the checksum before them
		binary.BigEndian.PutUint16(b[at+4:], r.checksum())
		b = append(b, 0, 0, 0, 0)
	}
	return appendPayload(b, payload, r.Flags, r.Sums.Payload)
}

// checksum returns the checksum of the header.
func (r *Response) checksum() uint16 {
	return crc16(0, []byte{uint8(r.Code), r.Flags, uint8(r.Cookie), uint8(r.Cookie >> 8)})
}

// appendPayload appends the checksum of the payload and the payload. sum is the checksum to use if flag More is set.
func appendPayload(b, payload []byte, flags uint8, sum uint32) []byte {
	switch flags & (Checksums | More) {
	case Checksums:
		sum = Sum(payload)
	case 0, More:
		sum = 0
	}
	b = binary.BigEndian.AppendUint32(b, sum)
	return append(b, payload...)
}

// ParseRequest parses the header of a request and returns its payload. For another protocol version, the error is an
// *UnknownVersion.
func ParseRequest(b []byte) (r Request, payload []byte, err error) {
	if len(b) < coreSize {
		return r, nil, errShort
	}
	if b[0] != Magic {
		return r, nil, fmt.Errorf("hgwire: request begins with %#x, want %#x", b[0], Magic)
	}
	r = Request{ID: binary.BigEndian.Uint64(b[2:]), Flags: b[10], Cookie: b[11]}
	if b[1] != Protocol {
		return r, nil, &UnknownVersion{b[1]}
	}
	if payload, err = r.Sums.parse(b, coreSize, r.Flags); err == nil && r.Flags&Checksums != 0 {
		r.Sums.expected = requestChecksum(b)
	}
	return r, payload, err
}

// Nameless returns an ID close to random. A request header with this ID and no flags has the checksum 0. A library
// built with checksums expects the checksum where such a header contains 0, and therefore accepts the request.
func Nameless(random uint64) uint64 {
	id := random &^ 0xffff
	for ; ; id++ {
		r := Request{ID: id}
		var b [coreSize + payloadHash]byte
		if requestChecksum(r.Append(b[:0], nil)) == 0 {
			return id
		}
	}
}

// An UnknownVersion is returned by ParseRequest for a request whose protocol version is not supported.
type UnknownVersion struct{ Version uint8 }

func (e *UnknownVersion) Error() string {
	return fmt.Sprintf("hgwire: protocol version %d, want %d (Mercury 2.1 or later)", e.Version, Protocol)
}

// ParseResponse parses the header of a response and returns its payload. If the code is not 0, the header may be
// incomplete and the payload is undefined, so no payload is returned.
func ParseResponse(b []byte) (r Response, payload []byte, err error) {
	if len(b) < 4 {
		return r, nil, errShort
	}
	r = Response{Code: int8(b[0]), Flags: b[1], Cookie: binary.BigEndian.Uint16(b[2:])}
	payload, err = r.Sums.parse(b, 4, r.Flags)
	if r.Flags&Checksums != 0 {
		r.Sums.expected = r.checksum()
	}
	if r.Code != 0 {
		return r, nil, nil
	}
	return r, payload, err
}

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	errShort   = errors.New("hgwire: message too short")
)

// crc16 updates a CRC-16 with polynomial 0x8bb7, without reflection. The initial value is 0.
func crc16(sum uint16, b []byte) uint16 {
	for _, c := range b {
		sum = crc16Byte(sum, c)
	}
	return sum
}

// crc16Byte updates a CRC-16 with one byte.
func crc16Byte(sum uint16, c byte) uint16 { return sum<<8 ^ crc16Table[byte(sum>>8)^c] }

var crc16Table = func() (t [256]uint16) {
	for i := range t {
		sum := uint16(i) << 8
		for range 8 {
			top := sum & 0x8000
			if sum <<= 1; top != 0 {
				sum ^= 0x8bb7
			}
		}
		t[i] = sum
	}
	return t
}()
