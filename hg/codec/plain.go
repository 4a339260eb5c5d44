package codec

import "encoding/binary"

// appendPlain encodes bytes and strings, as the encoder would and without its reflection. It reports false for other types.
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

// appendLen writes a length of 1, 2 or 4 bytes, behind the first of three type bytes.
func appendLen(dst []byte, first byte, n int) []byte {
	switch {
	case n < 1<<8:
		return append(dst, first, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(dst, first+1), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(dst, first+2), uint32(n))
}

// decodePlain decodes bytes and strings out of good bytes. It reports false when the decoder is to do it: for other types, and
// other values.
func decodePlain(b []byte, v any) bool {
	if !bytesLike(b[0]) {
		return false
	}
	_, _, body := head(b, 0)
	switch v := v.(type) {
	case *[]byte:
		if v == nil {
			return false
		}
		if *v == nil || cap(*v) < len(b)-body {
			*v = append([]byte{}, b[body:]...) // memory that is not cleared first
		} else {
			*v = append((*v)[:0], b[body:]...)
		}
		return true
	case *string:
		if v == nil {
			return false
		}
		*v = string(b[body:])
		return true
	}
	return false
}
