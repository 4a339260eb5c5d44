package protocol

import (
	"encoding/binary"
	"fmt"
)

// A Code is a command code, which consists of four ASCII letters.
type Code uint32

// Command codes.
const (
	CodeAuth Code = 0x41555448 // begins authentication
	CodeIMPI Code = 0x494D5049 // joins, in the strict form
	CodeJoin Code = 0x4A4F494E // joins, in the native form
	CodeColl Code = 0x434F4C4C // submits a part, or delivers a set
	CodeDone Code = 0x444F4E45 // no more labels follow, or the startup is complete
	CodeFini Code = 0x46494E49 // the client is leaving
	CodeAbrt Code = 0x41425254 // the startup has failed; native form only
)

// optionalBit marks codes that a native peer ignores if it does not know them.
const optionalBit Code = 1 << 31

// String returns the four letters of c, or its number if it contains other bytes.
func (c Code) String() string {
	b := binary.BigEndian.AppendUint32(nil, uint32(c))
	for _, x := range b {
		if x < 'A' || x > 'Z' {
			return fmt.Sprintf("command %#08x", uint32(c))
		}
	}
	return string(b)
}

// headerLen is the length in bytes of every command's header, which consists of the code and the payload length, 4
// bytes each, big-endian.
const headerLen = 8

// maxIdleBuf is the maximum size in bytes of the buffer that an empty decoder retains.
const maxIdleBuf = 4 << 10

// A decoder splits a byte stream into commands and raw fields. Its memory is proportional to the bytes that have been
// written but not taken.
type decoder struct {
	buf   []byte
	taken int // number of bytes of buf that have been taken
}

// write appends bytes of the stream.
func (d *decoder) write(b []byte) {
	if d.taken == len(d.buf) {
		d.buf, d.taken = d.buf[:0], 0
		if cap(d.buf) > maxIdleBuf {
			d.buf = nil
		}
	} else if d.taken > len(d.buf)/2 {
		d.buf = d.buf[:copy(d.buf, d.buf[d.taken:])]
		d.taken = 0
	}
	d.buf = append(d.buf, b...)
}

// takeRaw takes n bytes that are not part of a command. They are valid until the next write. It returns false if
// fewer are available.
func (d *decoder) takeRaw(n int) ([]byte, bool) {
	if len(d.buf)-d.taken < n {
		return nil, false
	}
	b := d.buf[d.taken : d.taken+n : d.taken+n]
	d.taken += n
	return b, true
}

// takeCommand takes a command. limit returns the maximum payload length for a code. The payload is valid until the
// next write. takeCommand returns false while the command is incomplete. If the length exceeds the limit, it returns
// an error as soon as the header has arrived.
func (d *decoder) takeCommand(limit func(Code) int) (Code, []byte, bool, error) {
	head := d.buf[d.taken:]
	if len(head) < headerLen {
		return 0, nil, false, nil
	}
	code := Code(binary.BigEndian.Uint32(head))
	n := int64(int32(binary.BigEndian.Uint32(head[4:])))
	if most := limit(code); n < 0 || n > int64(most) {
		return code, nil, false, violationError("%v with a length of %d, limit %d", code, n, most)
	}
	if int64(len(head)) < headerLen+n {
		return 0, nil, false, nil
	}
	d.taken += headerLen
	payload, _ := d.takeRaw(int(n))
	return code, payload, true, nil
}

// appendCommand appends a command to b. Its payload is the concatenation of the given slices.
func appendCommand(b []byte, code Code, payload ...[]byte) []byte {
	n := 0
	for _, p := range payload {
		n += len(p)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(code))
	b = binary.BigEndian.AppendUint32(b, uint32(n))
	for _, p := range payload {
		b = append(b, p...)
	}
	return b
}

// encodeInt32s encodes values as 32-bit big-endian integers.
func encodeInt32s(values ...int) []byte {
	var b []byte
	for _, v := range values {
		b = binary.BigEndian.AppendUint32(b, uint32(int32(v)))
	}
	return b
}

// decodeInt32 decodes the 32-bit big-endian integer at the beginning of b.
func decodeInt32(b []byte) int { return int(int32(binary.BigEndian.Uint32(b))) }
