package xnet

import (
	"encoding/binary"
	"fmt"
)

// Message operations.
const (
	Msg      = 0 // an unexpected message, with flag Immediate; or an acknowledgement, without payload and with Data equal to Ack
	Tagged   = 1 // an expected message
	ReadReq  = 2
	ReadResp = 3
	Write    = 4
)

// Message flags.
const (
	Immediate = 1 // 8 bytes of user data follow the base of the header
	Deliver   = 4 // the sender requests an acknowledgement
	Commit    = 8 // the sender requests an acknowledgement once the data is persistent
)

// Ack is the value of Data in an acknowledgement.
const Ack = 2

const (
	base      = 16 // size of the part common to all headers
	word      = 8  // size of the user data or tag
	iovSize   = 24
	maxIOV    = 4
	MaxHeader = base + word + maxIOV*iovSize

	headerVersion = 3
)

// UnexpectedTag is the bit above those of a tag. Mercury before 2.3 sets it in a Tagged message to mark it as an
// unexpected message.
const UnexpectedTag = 1 << 32

// An IOV is a range of memory on which a message operates.
type IOV struct{ Addr, Len, Key uint64 }

// A Header is the header of a message.
type Header struct {
	Op, Data uint8
	Flags    uint16
	ID       uint8 // a counter, checked only by debug builds of libfabric
	Size     uint64
	Tag      uint64 // tag of a Tagged message; user data if Immediate is set
	N        int    // number of elements of IOV in use; only for ReadReq and Write
	IOV      [maxIOV]IOV
}

// Len returns the length of the header in bytes.
func (h *Header) Len() int {
	n := base + h.N*iovSize
	if h.hasTag() {
		n += word
	}
	return n
}

// hasTag reports whether the header contains a tag or user data.
func (h *Header) hasTag() bool { return h.Op == Tagged || h.Flags&Immediate != 0 }

// Payload returns the number of bytes that follow the header.
func (h *Header) Payload() uint64 { return h.Size - uint64(h.Len()) }

// IsAck reports whether h acknowledges a Write.
func (h *Header) IsAck() bool { return h.Op == Msg && h.Data == Ack && h.Payload() == 0 }

// Unexpected reports whether h is the header of an unexpected message as sent by any version of Mercury.
func (h *Header) Unexpected() bool {
	return h.Op == Msg && h.Flags&Immediate != 0 || h.Op == Tagged && h.Tag&UnexpectedTag != 0
}

// Total returns the sum of the lengths in IOV. It returns an error if the sum exceeds limit.
func (h *Header) Total(limit uint64) (uint64, error) {
	var total uint64
	for _, v := range h.IOV[:h.N] {
		if v.Len > limit || total+v.Len > limit {
			return 0, fmt.Errorf("xnet: operation on more than %d bytes", limit)
		}
		total += v.Len
	}
	return total, nil
}

// Append sets Size for a payload of the given length in bytes and appends h to b.
func (h *Header) Append(b []byte, payload int) []byte {
	n := h.Len()
	h.Size = uint64(n + payload)
	b = append(b, headerVersion, h.Op)
	b = binary.LittleEndian.AppendUint16(b, h.Flags)
	b = append(b, h.Data, uint8(h.N), uint8(n), h.ID)
	b = binary.LittleEndian.AppendUint64(b, h.Size)
	if h.hasTag() {
		b = binary.LittleEndian.AppendUint64(b, h.Tag)
	}
	for _, v := range h.IOV[:h.N] {
		b = binary.LittleEndian.AppendUint64(b, v.Addr)
		b = binary.LittleEndian.AppendUint64(b, v.Len)
		b = binary.LittleEndian.AppendUint64(b, v.Key)
	}
	return b
}

// HeaderLen returns the length of the header at the beginning of b. It returns an error if b is shorter than Base.
func HeaderLen(b []byte) (int, error) {
	if len(b) < Base {
		return 0, errShort
	}
	n := int(b[6])
	if b[0] != headerVersion || n < Base || n > MaxHeader {
		return 0, fmt.Errorf("xnet: message of version %d with a header of %d bytes, want version %d and %d to %d",
			b[0], n, headerVersion, Base, MaxHeader)
	}
	return n, nil
}

// Base is the number of bytes that HeaderLen needs to determine the length of a header.
const Base = base

// Parse parses b, which must be a complete header. If it succeeds, Size is at least len(b).
func (h *Header) Parse(b []byte) error {
	n, err := HeaderLen(b)
	if err != nil {
		return err
	}
	if len(b) != n {
		return errShort
	}
	h.Op, h.Flags, h.Data, h.ID = b[1], binary.LittleEndian.Uint16(b[2:]), b[4], b[7]
	h.Size, h.Tag, h.N = binary.LittleEndian.Uint64(b[8:]), 0, 0
	switch h.Op {
	case Msg, Tagged, ReadResp:
	case ReadReq, Write:
		if h.N = int(b[5]); h.N < 1 || h.N > maxIOV {
			return fmt.Errorf("xnet: operation %d on %d memory segments, want 1 to %d", h.Op, h.N, maxIOV)
		}
	default:
		return fmt.Errorf("xnet: unknown operation %d", h.Op)
	}
	if h.Op == Tagged && h.Flags&Immediate != 0 {
		return fmt.Errorf("xnet: unexpected user data in a tagged message")
	}
	if n != h.Len() {
		return fmt.Errorf("xnet: operation %d has a header of %d bytes, want %d", h.Op, n, h.Len())
	}
	if h.Size < uint64(n) || h.Size > 1<<62 {
		return fmt.Errorf("xnet: message of %d bytes with a header of %d", h.Size, n)
	}
	b = b[base:]
	if h.hasTag() {
		h.Tag, b = binary.LittleEndian.Uint64(b), b[word:]
	}
	for i := range h.N {
		h.IOV[i] = IOV{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])}
		b = b[iovSize:]
	}
	return nil
}
