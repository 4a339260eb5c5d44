package proc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
)

// An Appender encodes itself.
type Appender interface {
	AppendProc(to []byte) ([]byte, error)
}

// A Reader decodes itself from the beginning of data, and returns how many bytes it was.
type Reader interface {
	ReadProc(data []byte) (int, error)
}

// Marshal encodes v. It does not block. The error says which field cannot be encoded, and why: its type, a string with a zero byte, or more
// items than a count has room for.
func Marshal(v any) ([]byte, error) { return Append(nil, v) }

// Append appends the encoding of v to b, as Marshal makes it. If it fails it returns nil, and what is behind len(b) is undefined.
func Append(b []byte, v any) ([]byte, error) {
	if v == nil {
		return nil, errors.New("proc: nil has no type")
	}
	from := reflect.ValueOf(v)
	k, err := kindOf(from.Type())
	if err != nil {
		return nil, err
	}
	if !from.CanAddr() && k.custom { // its method may be the pointer's
		p := reflect.New(from.Type())
		p.Elem().Set(from)
		from = p.Elem()
	}
	return k.append(b, from)
}

// Unmarshal decodes all of data into what v points to. The value keeps no reference to data. The error says that data end too early or
// that bytes are left, which is how another type at the other side shows; the value may then be set in part.
func Unmarshal(data []byte, v any) error {
	to := reflect.ValueOf(v)
	if to.Kind() != reflect.Pointer || to.IsNil() {
		return fmt.Errorf("proc: Unmarshal into a %T, want a pointer", v)
	}
	k, err := kindOf(to.Type().Elem())
	if err != nil {
		return err
	}
	rest, err := k.read(data, to.Elem())
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("proc: %d bytes are left behind a %s: the other side has another type", len(rest), to.Type().Elem())
	}
	return err
}

// Check returns why t cannot be encoded, or nil.
func Check(t reflect.Type) error {
	_, err := kindOf(t)
	return err
}

// A kind is how a type is encoded.
type kind struct {
	t      reflect.Type
	custom bool // by its own methods
	fixed  int  // bytes of a number
	least  int  // bytes of the shortest value
	fields []field
	elem   *kind // of an array or a slice
	count  int   // bytes of a slice's count; 0: it goes to the end
}

type field struct {
	index int
	name  string
	kind  *kind
}

var errShort = errors.New("proc: the data end too early: the other side has another type")

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
		if k.count > 0 && k.count < 8 && uint64(n) >= 1<<(8*k.count) {
			return nil, fmt.Errorf("proc: %d items do not fit into a count of %d bytes", n, k.count)
		}
		b = appendNumber(b, uint64(n), k.count)
		if k.elem.t.Kind() == reflect.Uint8 {
			return append(b, v.Bytes()...), nil
		}
		return k.items(b, v, n)
	case reflect.Array:
		return k.items(b, v, v.Len())
	case reflect.Float32:
		return binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(v.Float()))), nil
	case reflect.Float64:
		return binary.LittleEndian.AppendUint64(b, math.Float64bits(v.Float())), nil
	}
	if v.CanInt() {
		return appendNumber(b, uint64(v.Int()), k.fixed), nil
	}
	return appendNumber(b, v.Uint(), k.fixed), nil
}

// addressable returns v so that the methods of its pointer can be called.
func addressable(v reflect.Value, k *kind) reflect.Value {
	if v.CanAddr() || !k.custom {
		return v
	}
	p := reflect.New(v.Type())
	p.Elem().Set(v)
	return p.Elem()
}

func (k *kind) items(b []byte, v reflect.Value, n int) (_ []byte, err error) {
	for i := 0; i < n && err == nil; i++ {
		b, err = k.elem.append(b, addressable(v.Index(i), k.elem))
	}
	return b, err
}

func appendNumber(b []byte, n uint64, size int) []byte {
	for range size {
		b = append(b, byte(n))
		n >>= 8
	}
	return b
}

func number(b []byte) (n uint64) {
	for i, c := range b {
		n |= uint64(c) << (8 * i)
	}
	return n
}

// read decodes the beginning of b into v, and returns what follows.
func (k *kind) read(b []byte, v reflect.Value) ([]byte, error) {
	if k.custom {
		n, err := v.Addr().Interface().(Reader).ReadProc(b)
		if err != nil {
			return nil, err
		}
		if n < 0 || n > len(b) {
			return nil, fmt.Errorf("proc: ReadProc of %s took %d bytes of %d", k.t, n, len(b))
		}
		return b[n:], nil
	}
	if len(b) < k.least {
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
		if k.count > 0 {
			n, b = number(b[:k.count]), b[k.count:]
		}
		if n > uint64(len(b)/k.elem.least) {
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
		if n := number(b[:k.fixed]); v.CanInt() {
			shift := 64 - 8*k.fixed
			v.SetInt(int64(n) << shift >> shift)
		} else {
			v.SetUint(n)
		}
	}
	return b[k.fixed:], nil
}

func (k *kind) readItems(b []byte, v reflect.Value) (_ []byte, err error) {
	for i := 0; i < v.Len() && err == nil; i++ {
		b, err = k.elem.read(b, v.Index(i))
	}
	return b, err
}

func appendString(b []byte, s string) ([]byte, error) {
	if strings.IndexByte(s, 0) >= 0 {
		return nil, errors.New("proc: a string with a zero byte, where C would end it")
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(len(s)+1))
	return append(append(b, s...), 0, 0, 1), nil // its terminator; not const; the decoder owns it
}

// readString decodes the string at the beginning of b, of 8 bytes at least, and returns what follows it. ok is false for NULL, which is
// a length of 0: neither a terminator nor the two flags follow it.
func readString(b []byte) (s string, ok bool, rest []byte, err error) {
	n := binary.LittleEndian.Uint64(b)
	if b = b[8:]; n == 0 {
		return "", false, b, nil
	}
	if n > uint64(len(b)) || uint64(len(b))-n < 2 {
		return "", false, nil, errShort
	}
	if b[n-1] != 0 {
		return "", false, nil, errors.New("proc: a string without a zero byte at its end")
	}
	s, _, _ = strings.Cut(string(b[:n]), "\x00")
	return s, true, b[n+2:], nil
}
