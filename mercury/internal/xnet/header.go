package xnet

import (
	"encoding/binary"
	"fmt"
)

// The operations of a message.
const (
	Msg      = 0 // with flag Immediate: an unexpected message; without payload and with Data Ack: an acknowledgement
	Tagged   = 1 // an expected message
	ReadReq  = 2
	ReadResp = 3
	Write    = 4
)

// The flags of a message.
const (
	Immediate = 1 // 8 bytes of user data follow the base of the header
	Deliver   = 4 // the sender wants an acknowledgement
	Commit    = 8 // the same, once the data are safe
)

// Ack is the Data of an acknowledgement.
const Ack = 2

const (
	base      = 16 // of every header
	word      = 8  // user data, or a tag
	iovSize   = 24
	maxIOV    = 4
	MaxHeader = base + word + maxIOV*iovSize

	headerVersion = 3
)

// Bits that widen a tag: sent by Mercury before 2.3 with a Tagged message that is an unexpected one.
const UnexpectedTag = 1 << 32

// An IOV is a piece of the memory that an operation is about.
type IOV struct{ Addr, Len, Key uint64 }

// A Header begins each message.
type Header struct {
	Op, Data uint8
	Flags    uint16
	ID       uint8 // a counter; only debug builds of libfabric look at it
	Size     uint64
	Tag      uint64 // of a Tagged message, or with Immediate the user data
	N        int    // of IOV in use; only for ReadReq and Write
	IOV      [maxIOV]IOV
}

// Len returns the length of the header.
func (h *Header) Len() int {
	n := base + h.N*iovSize
	if h.tagged() {
		n += word
	}
	return n
}

func (h *Header) tagged() bool { return h.Op == Tagged || h.Flags&Immediate != 0 }

// Payload returns how many bytes follow the header.
func (h *Header) Payload() uint64 { return h.Size - uint64(h.Len()) }

// IsAck reports whether h acknowledges a Write.
func (h *Header) IsAck() bool { return h.Op == Msg && h.Data == Ack && h.Payload() == 0 }

// Unexpected reports whether h begins an unexpected message, in the form of either of Mercury's versions.
func (h *Header) Unexpected() bool {
	return h.Op == Msg && h.Flags&Immediate != 0 || h.Op == Tagged && h.Tag&UnexpectedTag != 0
}

// Total returns the length of all of IOV, or an error if that is more than limit.
func (h *Header) Total(limit uint64) (uint64, error) {
	var total uint64
	for _, v := range h.IOV[:h.N] {
		if v.Len > limit || total+v.Len > limit {
			return 0, fmt.Errorf("xnet: an operation on more than %d bytes", limit)
		}
		total += v.Len
	}
	return total, nil
}

// Append appends h with a Size for payload bytes.
func (h *Header) Append(b []byte, payload int) []byte {
	n := h.Len()
	h.Size = uint64(n + payload)
	b = append(b, headerVersion, h.Op)
	b = binary.LittleEndian.AppendUint16(b, h.Flags)
	b = append(b, h.Data, uint8(h.N), uint8(n), h.ID)
	b = binary.LittleEndian.AppendUint64(b, h.Size)
	if h.tagged() {
		b = binary.LittleEndian.AppendUint64(b, h.Tag)
	}
	for _, v := range h.IOV[:h.N] {
		b = binary.LittleEndian.AppendUint64(b, v.Addr)
		b = binary.LittleEndian.AppendUint64(b, v.Len)
		b = binary.LittleEndian.AppendUint64(b, v.Key)
	}
	return b
}

// HeaderLen returns the length of the header that begins with b, of which it needs Base bytes.
func HeaderLen(b []byte) (int, error) {
	if len(b) < Base {
		return 0, errShort
	}
	n := int(b[6])
	if b[0] != headerVersion || n < Base || n > MaxHeader {
		return 0, fmt.Errorf("xnet: a message of version %d with a header of %d bytes, want version %d and %d to %d", b[0], n, headerVersion, Base, MaxHeader)
	}
	return n, nil
}

// Base is how much of a header HeaderLen needs.
const Base = base

// Parse parses the whole header b into h. Size is at least len(b) afterwards.
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
			return fmt.Errorf("xnet: operation %d on %d pieces of memory, want 1 to %d", h.Op, h.N, maxIOV)
		}
	default:
		return fmt.Errorf("xnet: operation %d is not known", h.Op)
	}
	if h.Op == Tagged && h.Flags&Immediate != 0 {
		return fmt.Errorf("xnet: a tagged message with user data")
	}
	if n != h.Len() {
		return fmt.Errorf("xnet: operation %d has a header of %d bytes, want %d", h.Op, n, h.Len())
	}
	if h.Size < uint64(n) || h.Size > 1<<62 {
		return fmt.Errorf("xnet: a message of %d bytes with a header of %d", h.Size, n)
	}
	b = b[base:]
	if h.tagged() {
		h.Tag, b = binary.LittleEndian.Uint64(b), b[word:]
	}
	for i := range h.N {
		h.IOV[i] = IOV{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])}
		b = b[iovSize:]
	}
	return nil
}
