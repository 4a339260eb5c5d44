package codec

import (
	"encoding/binary"
	"fmt"
)

// MaxDepth is the maximum nesting depth of containers that Msgpack accepts. The decoder recurses
// once per level.
const MaxDepth = 32

// A class is the kind of data that follows the first byte of a msgpack value.
type class uint8

const (
	scalar    class = iota // n bytes: numbers, strings, binary; none for nil and booleans
	extension              // n bytes, the first of which is the type
	list                   // n values
	dict                   // n pairs of values
	reserved
)

// A form describes one possible first byte of a value. The value's n is the number in the field n
// plus, if width is not 0, the big-endian integer in the next width bytes.
type form struct {
	class class
	width uint8
	n     uint8
}

var forms = func() (t [256]form) {
	fill := func(from, to int, f form) {
		for c := from; c <= to; c++ {
			t[c] = f
		}
	}
	packed := func(from, to int, cl class) { // the count is in the low bits of the first byte
		for c := from; c <= to; c++ {
			t[c] = form{class: cl, n: uint8(c - from)}
		}
	}
	sized := func(from int, cl class, n uint8, widths ...uint8) {
		for i, w := range widths {
			t[from+i] = form{class: cl, width: w, n: n}
		}
	}
	plain := func(from int, cl class, ns ...uint8) {
		for i, n := range ns {
			t[from+i] = form{class: cl, n: n}
		}
	}
	fill(0x00, 0x7f, form{})                 // small positive integers
	packed(0x80, 0x8f, dict)                 // small maps
	packed(0x90, 0x9f, list)                 // small arrays
	packed(0xa0, 0xbf, scalar)               // short strings
	t[0xc0] = form{}                         // nil
	t[0xc1] = form{class: reserved}          //
	fill(0xc2, 0xc3, form{})                 // booleans
	sized(0xc4, scalar, 0, 1, 2, 4)          // binary
	sized(0xc7, extension, 1, 1, 2, 4)       // extensions of any length; 1 is for the type byte
	plain(0xca, scalar, 4, 8)                // floats
	plain(0xcc, scalar, 1, 2, 4, 8)          // unsigned
	plain(0xd0, scalar, 1, 2, 4, 8)          // signed
	plain(0xd4, extension, 2, 3, 5, 9, 1+16) // extensions of a fixed length
	sized(0xd9, scalar, 0, 1, 2, 4)          // strings
	sized(0xdc, list, 0, 2, 4)               // arrays
	sized(0xde, dict, 0, 2, 4)               // maps
	fill(0xe0, 0xff, form{})                 // small negative integers
	return t
}()

// Check returns an error unless b contains exactly one msgpack value with containers nested no more
// than maxDepth levels deep. It reads only the type bytes and the lengths, does not allocate if b
// is valid, and does not recurse.
//
// All containers of a valid b together hold at most len(b) values. This prevents a decoder from
// allocating memory for elements that are claimed but not present.
func Check(b []byte, maxDepth int) error {
	_, err := check(b, maxDepth)
	return err
}

// A survey holds the properties of valid bytes that check has determined.
type survey struct {
	values int  // number of values, including containers and their contents
	exts   bool // reports whether some values are extensions
	hollow int  // offset of an extension without a body, plus 1; 0 if there is none

	low  int64  // smallest integer, or 0
	high uint64 // largest integer, if it is above 127
}

// check is like Check, but also returns a survey.
func check(b []byte, maxDepth int) (sv survey, err error) {
	var (
		outer = make([]uint64, 0, MaxDepth) // number of values missing in each enclosing container
		here  = uint64(1)                   // number of values missing in the current container
		owed  = uint64(1)                   // number of values missing in all containers; each takes at least one byte
		pos   = 0
	)
	for owed > 0 {
		for here == 0 {
			here, outer = outer[len(outer)-1], outer[:len(outer)-1]
		}
		at := pos
		if at == len(b) {
			return sv, refuse(b, at, ErrTruncated)
		}
		f := forms[b[at]]
		pos++
		n := uint64(f.n)
		if f.width > 0 {
			if len(b)-pos < int(f.width) {
				return sv, refuse(b, at, ErrTruncated)
			}
			n += number(b[pos:], f.width)
			pos += int(f.width)
		}
		sv.values++
		here--
		owed--
		left := uint64(len(b) - pos)

		switch f.class {
		case scalar, extension:
			if n+owed > left {
				return sv, refuse(b, at, ErrTruncated)
			}
			if c := b[at]; c >= 0xe0 || c >= 0xcc && c <= 0xd3 {
				low, high := integerAt(b, at)
				sv.low, sv.high = min(sv.low, low), max(sv.high, high)
			}
			pos += int(n)
			if f.class == extension {
				sv.exts = true
				if n == 1 {
					sv.hollow = at + 1
				}
			}
		case list, dict:
			if f.class == dict {
				n *= 2
			}
			if n+owed > left {
				return sv, refuse(b, at, ErrTruncated)
			}
			if len(outer) >= maxDepth {
				return sv, refuse(b, at, ErrDepth)
			}
			if n > 0 {
				outer = append(outer, here)
				here = n
				owed += n
			}
		case reserved:
			return sv, refuse(b, at, ErrReserved)
		}
	}
	if pos != len(b) {
		return sv, refuse(b, pos, ErrTrailing)
	}
	return sv, nil
}

// integerAt returns the integer at pos, whose bytes must be present. The result is low if the
// integer is negative, and high otherwise.
func integerAt(b []byte, pos int) (low int64, high uint64) {
	switch c := b[pos]; {
	case c <= 0x7f:
		return 0, uint64(c)
	case c >= 0xe0:
		return int64(int8(c)), 0
	case c <= 0xcf:
		return 0, number64(b[pos+1:], 1<<(c-0xcc))
	default:
		width := 1 << (c - 0xd0)
		n := int64(number64(b[pos+1:], width)<<(64-8*width)) >> (64 - 8*width)
		if n < 0 {
			return n, 0
		}
		return 0, uint64(n)
	}
}

// number64 decodes a big-endian number of width bytes.
func number64(b []byte, width int) (n uint64) {
	for _, c := range b[:width] {
		n = n<<8 | uint64(c)
	}
	return n
}

// number returns the big-endian integer in the first width bytes of b. It returns 0 if width is 0.
func number(b []byte, width uint8) uint64 {
	switch width {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(binary.BigEndian.Uint16(b))
	case 4:
		return uint64(binary.BigEndian.Uint32(b))
	}
	return 0
}

// head decodes the first bytes of the value at pos in b, which must have passed check. It returns
// the class of the value, its number n of bytes, values, or pairs, and the offset of its body or
// first element.
func head(b []byte, pos int) (cl class, n, body int) {
	f := forms[b[pos]]
	pos++
	return f.class, int(f.n) + int(number(b[pos:], f.width)), pos + int(f.width)
}

// skip returns the offset of the end of the value at pos in b, which must have passed check.
func skip(b []byte, pos int) int {
	for owed := 1; owed > 0; owed-- {
		cl, n, body := head(b, pos)
		pos = body
		switch cl {
		case list:
			owed += n
		case dict:
			owed += 2 * n
		default:
			pos += n
		}
	}
	return pos
}

// refuse returns an InputError for the value at offset at. The error wraps reason and describes as
// much of the value as is present in b.
func refuse(b []byte, at int, reason error) error {
	return &InputError{Offset: at, Len: len(b), What: describe(b[at:]), Err: reason}
}

func describe(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	f := forms[b[0]]
	if len(b)-1 < int(f.width) {
		return fmt.Sprintf("0x%02x without its length", b[0])
	}
	n := uint64(f.n) + number(b[1:], f.width)
	left := len(b) - 1 - int(f.width)
	switch f.class {
	case list:
		return fmt.Sprintf("array of %d, with %d bytes left", n, left)
	case dict:
		return fmt.Sprintf("map of %d pairs, with %d bytes left", n, left)
	case extension:
		return fmt.Sprintf("extension of %d bytes, with %d left", n-1, max(left-1, 0))
	}
	return fmt.Sprintf("0x%02x with %d bytes, of %d left", b[0], n, left)
}
