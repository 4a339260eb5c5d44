package codec

import (
	"errors"
	"fmt"
)

// A Codec converts RPC arguments to bytes and back. Its methods must be safe for concurrent use.
type Codec interface {
	// Name identifies the codec in logs and errors.
	Name() string

	// ID identifies the codec on the wire. It is sent with everything that the codec encodes.
	// Codecs defined by programs must use IDs starting at 128.
	ID() uint8

	// Append encodes v, appends it to dst, and returns the extended slice. A nil v is encoded as no
	// bytes. On error the result is dst, unchanged.
	Append(dst []byte, v any) ([]byte, error)

	// Decode decodes b into v, which is a pointer. b comes from a peer and must be validated.
	// Decode must copy the bytes it retains, since b is reused after the call. If v is nil, Decode
	// validates and discards b.
	Decode(b []byte, v any) error
}

// IDs of the codecs that every peer supports.
const (
	NoBytesID uint8 = 0 // values without bytes, regardless of the codec
	RawID     uint8 = 1
	MsgpackID uint8 = 2
	// EncodedID marks bytes that the program has encoded itself, for example for ForwardRaw. The
	// receiver must know their encoding.
	EncodedID uint8 = 3
)

// NameOf returns the name of a codec that every peer supports, or the ID as text for any other
// codec.
func NameOf(id uint8) string {
	switch id {
	case RawID:
		return raw{}.Name()
	case MsgpackID:
		return packer{}.Name()
	case EncodedID:
		return "the program's own bytes"
	}
	return fmt.Sprintf("%d", id)
}

// Errors for bytes that Decode or Check rejects. They are wrapped in an InputError, which contains
// the position.
var (
	ErrNoValue   = errors.New("empty input, want a value")
	ErrTruncated = errors.New("truncated input")
	ErrTrailing  = errors.New("trailing bytes after the value")
	ErrDepth     = errors.New("nesting too deep")
	ErrReserved  = errors.New("reserved byte 0xc1")
	ErrExtension = errors.New("unexpected extension")
	ErrKey       = errors.New("invalid map key")
	ErrRange     = errors.New("integer out of range")
	ErrInflated  = errors.New("decoded size too large for the input")
)

// ErrType means that the codec does not support the Go type, which is an error of the calling
// program.
var ErrType = errors.New("unsupported type")

// An InputError describes an error in bytes received from a peer and its position.
type InputError struct {
	Offset int    // offset of the first byte of the invalid value
	Len    int    // length of the whole input
	What   string // the invalid value; may be empty
	Err    error  // one of the reasons above
}

func (e *InputError) Error() string {
	what := e.What
	if what != "" {
		what += ": "
	}
	return fmt.Sprintf("codec: byte %d of %d: %s%v", e.Offset, e.Len, what, e.Err)
}

func (e *InputError) Unwrap() error { return e.Err }
