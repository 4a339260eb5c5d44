package codec

import (
	"fmt"
	"reflect"
	"sync"

	"github.com/vmihailenco/msgpack/v5"
)

// Msgpack is the default codec. It uses vmihailenco/msgpack with the guard and the budget described
// in the package comment. A panic during decoding, which a peer can provoke in reflect, is returned
// as an error.
var Msgpack Codec = packer{}

type packer struct{}

func (packer) Name() string { return "msgpack" }
func (packer) ID() uint8    { return MsgpackID }

// maxPooled is the length of the longest message after which the decoder is kept for reuse,
// together with its scratch memory.
const maxPooled = 64 << 10

type encoder struct {
	*msgpack.Encoder
	dst output
}

type decoder struct {
	*msgpack.Decoder
	src input
}

var (
	encoders = sync.Pool{New: func() any { return &encoder{Encoder: msgpack.NewEncoder(nil)} }}
	decoders = sync.Pool{New: func() any { return &decoder{Decoder: msgpack.NewDecoder(nil)} }}
)

// An output is the io.Writer and io.ByteWriter to which Append encodes.
type output struct{ b []byte }

func (s *output) Write(p []byte) (int, error) {
	s.b = append(s.b, p...)
	return len(p), nil
}

func (s *output) WriteByte(c byte) error {
	s.b = append(s.b, c)
	return nil
}

func (packer) Append(dst []byte, v any) ([]byte, error) {
	if v == nil {
		return dst, nil
	}
	if out, ok := appendPlain(dst, v); ok {
		return out, nil
	}
	t := factsOf(reflect.TypeOf(v))
	if out, ok := t.appendPlanned(dst, v); ok {
		return out, nil
	}
	return appendReflected(dst, v, t.deep)
}

// appendReflected implements Append with the msgpack package. deep states whether v may be nested
// too deeply and must be checked.
func appendReflected(dst []byte, v any, deep bool) ([]byte, error) {
	if deep {
		if at := tooDeep(reflect.ValueOf(v)); at != nil {
			return dst, errDeep(v, at)
		}
	}
	e := encoders.Get().(*encoder)
	e.dst.b = dst
	e.Reset(&e.dst)
	e.SetSortMapKeys(true)
	err := e.Encode(v)
	out := e.dst.b
	e.dst.b = nil
	encoders.Put(e)
	if err != nil {
		return dst, fmt.Errorf("codec: encode %T: %w", v, err)
	}
	if deep {
		if err := checkDeep(out[len(dst):], v); err != nil {
			return dst, err
		}
	}
	return out, nil
}

func (packer) Decode(b []byte, v any) error {
	if decodePlain(b, v) || decodePlanned(b, v) {
		return nil
	}
	return decodeReflected(b, v)
}

// decodeReflected implements Decode with the msgpack package.
func decodeReflected(b []byte, v any) error {
	if v == nil && len(b) == 0 {
		return nil
	}
	if len(b) == 0 {
		return &InputError{Err: ErrNoValue}
	}
	sv, err := check(b, MaxDepth)
	if err != nil || v == nil {
		return err
	}
	if sv.hollow > 0 { // input would reject it at that position
		return refuse(b, sv.hollow-1, ErrExtension)
	}
	s := shapeOf(v)
	if err := s.afford(b, sv.values); err != nil {
		return err
	}
	if err := s.fit(b, sv.values); err != nil {
		return fmt.Errorf("codec: decode into %T: %w", v, err)
	}
	if err := s.inRange(b, &sv); err != nil {
		return fmt.Errorf("codec: decode into %T: %w", v, err)
	}
	dropLeftovers(v)
	err = decode(b, v, sv.exts)
	if refused, ok := err.(*refusedError); ok {
		refused.place = s.place(b)
	}
	return err
}

// A refusedError is returned when the decoder rejects a value.
type refusedError struct {
	into  any
	place string // path of fields to the rejected value, followed by ": "
	err   error
}

func (e *refusedError) Error() string {
	return fmt.Sprintf("codec: decode into %T: %s%v", e.into, e.place, e.err)
}

func (e *refusedError) Unwrap() error { return e.err }

// decode decodes b, which must have passed check, into v. exts states whether b contains
// extensions.
func decode(b []byte, v any, exts bool) (err error) {
	// reflect panics if a field of type error receives a number, or a map keyed by any receives an
	// array.
	defer recoverDecode(v, &err)
	d := decoders.Get().(*decoder)
	d.src.reset(b, exts)
	d.Reset(&d.src)
	d.DisableAllocLimit(true) // the guard has checked every length, so allocate the exact size once
	if err := d.Decode(v); err != nil {
		return &refusedError{into: v, err: err} // d may be in any state, so it is not reused
	}
	if len(b) <= maxPooled {
		d.src.reset(nil, false)
		decoders.Put(d)
	}
	return nil
}

// recoverDecode recovers from a panic during decoding into v and stores an error in err. It must be
// deferred.
func recoverDecode(v any, err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("codec: decode into %T: panic: %v", v, p)
	}
}
