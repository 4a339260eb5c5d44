package proc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
)

// An Appender is a type that defines its own encoding. AppendProc appends the encoding of the value and returns the
// extended slice.
type Appender interface {
	AppendProc(to []byte) ([]byte, error)
}

// A Reader is a type that defines its own decoding. ReadProc decodes a value at the beginning of data and returns the
// number of bytes read.
type Reader interface {
	ReadProc(data []byte) (int, error)
}

// Marshal returns the encoding of v. The error names the field that cannot be encoded and the reason, which is its
// type, a string that contains a zero byte, or more items than the count can represent.
func Marshal(v any) ([]byte, error) { return Append(nil, v) }

// Append appends the encoding of v to b. If it fails, it returns nil, and the contents of b beyond len(b) are
// undefined.
func Append(b []byte, v any) ([]byte, error) {
	if v == nil {
		return nil, errors.New("proc: untyped nil")
	}
	from := reflect.ValueOf(v)
	k, err := kindOf(from.Type())
	if err != nil {
		return nil, err
	}
	if !from.CanAddr() && k.custom { // AppendProc may have a pointer receiver
		p := reflect.New(from.Type())
		p.Elem().Set(from)
		from = p.Elem()
	}
	return k.append(b, from)
}

// Unmarshal decodes data into the value to which v points. The value does not retain data. Unmarshal returns an error
// if data is too short or too long, which means that the other side uses another type. After an error, the value may be
// partially set.
func Unmarshal(data []byte, v any) error {
	to := reflect.ValueOf(v)
	if to.Kind() != reflect.Pointer || to.IsNil() {
		return fmt.Errorf("proc: unmarshal into %T, want a pointer", v)
	}
	k, err := kindOf(to.Type().Elem())
	if err != nil {
		return err
	}
	rest, err := k.read(data, to.Elem())
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("proc: %d trailing bytes after a %s", len(rest), to.Type().Elem())
	}
	return err
}

// Check returns an error if values of type t cannot be encoded.
func Check(t reflect.Type) error {
	_, err := kindOf(t)
	return err
}

// A kind describes the encoding of a type.
type kind struct {
	t         reflect.Type
	custom    bool    // t implements Appender and Reader
	size      int     // size of a number in bytes
	minSize   int     // size of the shortest value in bytes
	fields    []field // fields of a struct
	elem      *kind   // element kind of an array or slice
	countSize int     // size of a slice's count in bytes; 0 means that the slice extends to the end
}

// A field is a field of a struct kind.
type field struct {
	index int
	name  string
	kind  *kind
}

var errShort = errors.New("proc: unexpected end of data")

// append appends the encoding of v to b.
func (k *kind) append(b []byte, v reflect.Value) ([]byte, error) {
	if k.custom {
		return v.Addr().Interface().(Appender).AppendProc(b)
	}
	switch v.Kind() {
	case reflect.Bool:
		if v.Bool() {
			return append(b, 1), nil
		}
		return append(b, 0), nil
	case reflect.String:
		return appendString(b, v.String())
	case reflect.Pointer:
		if v.IsNil() {
			return binary.LittleEndian.AppendUint64(b, 0), nil
		}
		return appendString(b, v.Elem().String())
	case reflect.Struct:
		for _, f := range k.fields {
			var err error
			if b, err = f.kind.append(b, addressable(v.Field(f.index), f.kind)); err != nil {
				return nil, fmt.Errorf("%w, in field %s", err, f.name)
			}
		}
		return b, nil
	case reflect.Slice:
		n := v.Len()
		if k.countSize > 0 && k.countSize < 8 && uint64(n) >= 1<<(8*k.countSize) {
			return nil, fmt.Errorf("proc: %d items overflow a count of %d bytes", n, k.countSize)
		}
		b = appendNumber(b, uint64(n), k.countSize)
		if k.elem.t.Kind() == reflect.Uint8 {
			return append(b, v.Bytes()...), nil
		}
		return k.appendItems(b, v, n)
	case reflect.Array:
		return k.appendItems(b, v, v.Len())
	case reflect.Float32:
		return binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(v.Float()))), nil
	case reflect.Float64:
		return binary.LittleEndian.AppendUint64(b, math.Float64bits(v.Float())), nil
	}
	if v.CanInt() {
		return appendNumber(b, uint64(v.Int()), k.size), nil
	}
	return appendNumber(b, v.Uint(), k.size), nil
}

// addressable returns v or, if k needs to call methods with pointer receivers, an addressable copy of v.
func addressable(v reflect.Value, k *kind) reflect.Value {
	if v.CanAddr() || !k.custom {
		return v
	}
	p := reflect.New(v.Type())
	p.Elem().Set(v)
	return p.Elem()
}

// appendItems appends the encodings of the first n elements of v to b.
func (k *kind) appendItems(b []byte, v reflect.Value, n int) (_ []byte, err error) {
	for i := 0; i < n && err == nil; i++ {
		b, err = k.elem.append(b, addressable(v.Index(i), k.elem))
	}
	return b, err
}

// appendNumber appends a little-endian number of size bytes.
func appendNumber(b []byte, n uint64, size int) []byte {
	for range size {
		b = append(b, byte(n))
		n >>= 8
	}
	return b
}

// decodeNumber decodes a little-endian number of len(b) bytes.
func decodeNumber(b []byte) (n uint64) {
	for i, c := range b {
		n |= uint64(c) << (8 * i)
	}
	return n
}

// read decodes a value at the beginning of b into v and returns the bytes that follow.
func (k *kind) read(b []byte, v reflect.Value) ([]byte, error) {
	if k.custom {
		n, err := v.Addr().Interface().(Reader).ReadProc(b)
		if err != nil {
			return nil, err
		}
		if n < 0 || n > len(b) {
			return nil, fmt.Errorf("proc: ReadProc of %s returned %d for %d bytes", k.t, n, len(b))
		}
		return b[n:], nil
	}
	if len(b) < k.minSize {
		return nil, errShort
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(b[0] != 0)
		return b[1:], nil
	case reflect.String:
		s, _, rest, err := readString(b)
		v.SetString(s)
		return rest, err
	case reflect.Pointer:
		s, ok, rest, err := readString(b)
		v.SetZero()
		if ok {
			v.Set(reflect.New(k.t.Elem()))
			v.Elem().SetString(s)
		}
		return rest, err
	case reflect.Struct:
		for _, f := range k.fields {
			var err error
			if b, err = f.kind.read(b, v.Field(f.index)); err != nil {
				return nil, fmt.Errorf("%w, in field %s", err, f.name)
			}
		}
		return b, nil
	case reflect.Slice:
		n := uint64(len(b))
		if k.countSize > 0 {
			n, b = decodeNumber(b[:k.countSize]), b[k.countSize:]
		}
		if n > uint64(len(b)/k.elem.minSize) {
			return nil, errShort
		}
		if k.elem.t.Kind() == reflect.Uint8 {
			v.SetBytes(append([]byte{}, b[:n]...))
			return b[n:], nil
		}
		v.Set(reflect.MakeSlice(k.t, int(n), int(n)))
		return k.readItems(b, v)
	case reflect.Array:
		return k.readItems(b, v)
	case reflect.Float32:
		v.SetFloat(float64(math.Float32frombits(binary.LittleEndian.Uint32(b))))
	case reflect.Float64:
		v.SetFloat(math.Float64frombits(binary.LittleEndian.Uint64(b)))
	default:
		if n := decodeNumber(b[:k.size]); v.CanInt() {
			shift := 64 - 8*k.size
			v.SetInt(int64(n) << shift >> shift)
		} else {
			v.SetUint(n)
		}
	}
	return b[k.size:], nil
}

// readItems decodes the elements of v from the beginning of b and returns the bytes that follow.
func (k *kind) readItems(b []byte, v reflect.Value) (_ []byte, err error) {
	for i := 0; i < v.Len() && err == nil; i++ {
		b, err = k.elem.read(b, v.Index(i))
	}
	return b, err
}

// appendString appends s as an hg_string_t.
func appendString(b []byte, s string) ([]byte, error) {
	if strings.IndexByte(s, 0) >= 0 {
		return nil, errors.New("proc: string contains a zero byte")
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(len(s)+1))
	return append(append(b, s...), 0, 0, 1), nil // terminator, then the flags is_const and is_owned
}

// readString decodes a string at the beginning of b, which must have at least 8 bytes, and returns the bytes that
// follow. ok is false for NULL, which is encoded as a length of 0 without a terminator and flags.
func readString(b []byte) (s string, ok bool, rest []byte, err error) {
	n := binary.LittleEndian.Uint64(b)
	b = b[8:]
	if n == 0 {
		return "", false, b, nil
	}
	if n > uint64(len(b)) || uint64(len(b))-n < 2 {
		return "", false, nil, errShort
	}
	if b[n-1] != 0 {
		return "", false, nil, errors.New("proc: string is not terminated by a zero byte")
	}
	s, _, _ = strings.Cut(string(b[:n]), "\x00")
	return s, true, b[n+2:], nil
}
