package codec

import "encoding/binary"

// appendPlain encodes bytes and strings as the encoder does, but without reflection. It returns
// false for other types.
func appendPlain(dst []byte, v any) ([]byte, bool) {
	switch v := v.(type) {
	case *[]byte:
		if v != nil {
			return appendBytes(dst, *v), true
		}
	case []byte:
		return appendBytes(dst, v), true
	case *string:
		if v != nil {
			return appendString(dst, *v), true
		}
	case string:
		return appendString(dst, v), true
	}
	return dst, false
}

func appendBytes(dst, b []byte) []byte {
	if b == nil {
		return append(dst, 0xc0)
	}
	return append(appendLen(dst, 0xc4, len(b)), b...)
}

func appendString(dst []byte, s string) []byte {
	if len(s) < 32 {
		dst = append(dst, 0xa0|byte(len(s)))
	} else {
		dst = appendLen(dst, 0xd9, len(s))
	}
	return append(dst, s...)
}

// appendLen appends a length of 1, 2, or 4 bytes after its type byte, which is first, first+1, or
// first+2, respectively.
func appendLen(dst []byte, first byte, n int) []byte {
	switch {
	case n < 1<<8:
		return append(dst, first, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(dst, first+1), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(dst, first+2), uint32(n))
}

// decodePlain decodes b into v if b and v are both bytes or both a string. It returns false for all
// other types and values and for invalid bytes, which the guard and the decoder must examine.
func decodePlain(b []byte, v any) bool {
	switch v := v.(type) {
	case *[]byte:
		body, ok := plainBody(b)
		if !ok || v == nil {
			return false
		}
		*v = copyInto(*v, body)
		return true
	case *string:
		body, ok := plainBody(b)
		if !ok || v == nil {
			return false
		}
		*v = string(body)
		return true
	}
	return false
}

// plainBody returns the contents of the value in b. It returns false unless b consists of exactly
// one value that is bytes or a string.
func plainBody(b []byte) (body []byte, ok bool) {
	if len(b) == 0 || !bytesLike(b[0]) {
		return nil, false
	}
	f := forms[b[0]]
	at := 1 + int(f.width)
	if len(b) < at || uint64(len(b)-at) != uint64(f.n)+number(b[1:], f.width) {
		return nil, false
	}
	return b[at:], true
}
