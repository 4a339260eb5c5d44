package codec

import (
	"encoding"
	"fmt"
)

// Raw passes bytes through unchanged. It encodes []byte, string, pointers to these, and types that
// implement encoding.BinaryMarshaler. nil, a nil *[]byte, and a nil *string are encoded as no
// bytes. Raw decodes into *[]byte, whose memory it reuses, *string, and encoding.BinaryUnmarshaler.
// It does not validate the bytes.
var Raw Codec = raw{}

type raw struct{}

func (raw) Name() string { return "raw" }
func (raw) ID() uint8    { return RawID }

func (raw) Append(dst []byte, v any) ([]byte, error) {
	var out []byte
	var err error
	switch v := v.(type) {
	case nil:
		return dst, nil
	case []byte:
		return append(dst, v...), nil
	case string:
		return append(dst, v...), nil
	case *[]byte:
		if v == nil {
			return dst, nil
		}
		return append(dst, *v...), nil
	case *string:
		if v == nil {
			return dst, nil
		}
		return append(dst, *v...), nil
	case encoding.BinaryAppender:
		if out, err = v.AppendBinary(dst); err == nil {
			return out, nil
		}
	case encoding.BinaryMarshaler:
		if out, err = v.MarshalBinary(); err == nil {
			return append(dst, out...), nil
		}
	default:
		return dst, fmt.Errorf("codec: raw encode %T: unsupported type, want []byte, string, encoding.BinaryAppender or "+
			"encoding.BinaryMarshaler: %w", v, ErrType)
	}
	return dst, fmt.Errorf("codec: raw encode %T: %w", v, err)
}

func (raw) Decode(b []byte, v any) error {
	switch v := v.(type) {
	case nil:
		return nil
	case *[]byte:
		if v != nil {
			*v = append((*v)[:0], b...)
			return nil
		}
	case *string:
		if v != nil {
			*v = string(b)
			return nil
		}
	case encoding.BinaryUnmarshaler:
		return rawUnmarshal(b, v)
	}
	return fmt.Errorf("codec: raw decode into %T: unsupported type, want non-nil *[]byte, *string or encoding.BinaryUnmarshaler: %w",
		v, ErrType)
}

// rawUnmarshal decodes b with the UnmarshalBinary method of v. That method may not have been
// written for untrusted bytes, so a panic is returned as an error.
func rawUnmarshal(b []byte, v encoding.BinaryUnmarshaler) (err error) {
	defer recoverDecode(v, &err)
	if err := v.UnmarshalBinary(b); err != nil {
		return fmt.Errorf("codec: raw decode into %T: %w", v, err)
	}
	return nil
}
