package protocol

import (
	"encoding/binary"
	"fmt"
)

// A Code names a command. In ASCII it is four letters.
type Code uint32

const (
	CodeAuth Code = 0x41555448
	CodeIMPI Code = 0x494D5049 // joins, in the strict form
	CodeJoin Code = 0x4A4F494E // joins, in the native form
	CodeColl Code = 0x434F4C4C
	CodeDone Code = 0x444F4E45
	CodeFini Code = 0x46494E49
	CodeAbrt Code = 0x41425254 // native form only: why the startup has failed
)

// optional marks codes that a native peer skips if it does not know them.
const optional Code = 1 << 31

func (c Code) String() string {
	b := binary.BigEndian.AppendUint32(nil, uint32(c))
	for _, x := range b {
		if x < 'A' || x > 'Z' {
			return fmt.Sprintf("command %#08x", uint32(c))
		}
	}
	return string(b)
}

// headerLen is the length of what precedes the payload of every command: code and length, 4 bytes each, big-endian.
const headerLen = 8

// maxIdle is how much memory a decoder keeps when nothing is in it.
const maxIdle = 4 << 10

// A decoder cuts a stream of bytes into commands and raw fields. Its memory grows with what has been written to it and
// was not taken.
type decoder struct {
	buf []byte
	off int // what has been taken
}

func (d *decoder) write(b []byte) {
	if d.off == len(d.buf) {
		d.buf, d.off = d.buf[:0], 0
		if cap(d.buf) > maxIdle {
			d.buf = nil
		}
	} else if d.off > len(d.buf)/2 {
		d.buf = d.buf[:copy(d.buf, d.buf[d.off:])]
		d.off = 0
	}
	d.buf = append(d.buf, b...)
}

// raw takes n bytes that are part of no command. They are valid until the next write. It reports false while there are
// fewer.
func (d *decoder) raw(n int) ([]byte, bool) {
	if len(d.buf)-d.off < n {
		return nil, false
	}
	b := d.buf[d.off : d.off+n : d.off+n]
	d.off += n
	return b, true
}

// next takes a command; limit gives the longest payload of a code. The payload is valid until the next write. It reports
// false while the command is incomplete. A length that is too long is an error as soon as the header is there.
func (d *decoder) next(limit func(Code) int) (Code, []byte, bool, error) {
	head := d.buf[d.off:]
	if len(head) < headerLen {
		return 0, nil, false, nil
	}
	code := Code(binary.BigEndian.Uint32(head))
	n := int64(int32(binary.BigEndian.Uint32(head[4:])))
	if most := limit(code); n < 0 || n > int64(most) {
		return code, nil, false, violation("%v with a length of %d, at most %d allowed", code, n, most)
	}
	if int64(len(head)) < headerLen+n {
		return 0, nil, false, nil
	}
	d.off += headerLen
	payload, _ := d.raw(int(n))
	return code, payload, true, nil
}

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

func int32s(values ...int) []byte {
	var b []byte
	for _, v := range values {
		b = binary.BigEndian.AppendUint32(b, uint32(int32(v)))
	}
	return b
}

func getInt32(b []byte) int { return int(int32(binary.BigEndian.Uint32(b))) }
