package codec

import (
	"errors"
	"fmt"
)

// A Codec turns RPC arguments into bytes and back. It is used by many goroutines at once.
type Codec interface {
	// Name identifies the codec to people.
	Name() string

	// ID identifies the codec to peers: it travels with everything that the codec has encoded. Programs give their own
	// codecs numbers from 128 on.
	ID() uint8

	// Append encodes v at the end of dst and returns the extended slice. A nil v encodes as no bytes at all. After an
	// error the result is dst as it was given.
	Append(dst []byte, v any) ([]byte, error)

	// Decode reads v, a pointer, from b, which is hostile until proven otherwise. It copies what it keeps: b is reused
	// after the call. A nil v checks b and discards it.
	Decode(b []byte, v any) error
}

// The codecs that every peer knows, by ID.
const (
	NoBytesID uint8 = 0 // of what has no bytes, whatever the codec
	RawID     uint8 = 1
	MsgpackID uint8 = 2
	EncodedID uint8 = 3 // of bytes that a program has encoded itself, for ForwardRaw for example: whoever decodes them knows how
)

// NameOf returns the name of a codec that every peer knows, and else its number.
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

// Reasons why Decode or Check refuses bytes. They come wrapped in an InputError, which knows the place.
var (
	ErrNoValue   = errors.New("no value was sent, but one is expected")
	ErrTruncated = errors.New("the input ends before the value does")
	ErrTrailing  = errors.New("bytes follow the value")
	ErrDepth     = errors.New("containers are nested too deeply")
	ErrReserved  = errors.New("byte 0xc1 is not msgpack")
	ErrExtension = errors.New("an extension stands where a plain value is expected")
	ErrKey       = errors.New("a list or a map cannot be a key")
	ErrRange     = errors.New("the integer does not fit the receiver's type")
	ErrInflated  = errors.New("the value would take far more memory than its bytes justify")
)

// ErrType means that the codec cannot handle the Go type it was given: a mistake of the calling program.
var ErrType = errors.New("type not accepted")

// An InputError says where in the bytes of a peer something is wrong, and what.
type InputError struct {
	Offset int    // of the byte at which the offending value begins
	Len    int    // of the whole input
	What   string // the offending value, "" if there is nothing to add
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
