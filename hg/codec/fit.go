package codec

import (
	"fmt"
	"reflect"
)

// A fitting searches a message for a value that the decoder would reject, before the decoder has
// allocated memory for the values that precede it. It walks the message together with the shape of
// its destination, and has the decoder decode each suspect value separately. It may miss invalid
// values, which the decoder then rejects.
type fitting struct {
	b    []byte
	err  error
	path string // path of fields to the value that caused err

	ranges bool // reports whether to search only for integers that are out of range

	extType byte // type and length of the last extension on which the decoder was tried
	extSize int
}

// decoderCost is the memory, in bytes, that the decoder and the error that it returns may take.
const decoderCost = 1 << 10

// fit returns the error with which decoding b into a value of shape s would fail. It examines b
// only if the values that precede an invalid one could cost more memory than a rejected message
// may. values is the number of values in b.
func (s *shape) fit(b []byte, values int) error {
	if int64(values)*s.dense <= budgetFor(len(b))-decoderCost {
		return nil
	}
	f := fitting{b: b}
	f.walk(s, 0)
	if f.err != nil && f.path != "" {
		return fmt.Errorf("%s: %w", f.path, f.err)
	}
	return f.err
}

// inRange returns an error if an integer in b does not fit the receiver's type, because the decoder
// would truncate that integer.
func (s *shape) inRange(b []byte, sv *survey) error {
	if sv.low >= s.low && sv.high <= s.high {
		return nil
	}
	f := fitting{b: b, ranges: true}
	f.walk(s, 0)
	if f.err != nil && f.path != "" {
		return fmt.Errorf("%s: %w", f.path, f.err)
	}
	return f.err
}

// integer reports whether the value at pos is an integer. If f.ranges is true, integer also records
// an error if that integer does not fit t.
func (f *fitting) integer(t reflect.Type, pos int) bool {
	if !integer(f.b[pos]) {
		return false
	}
	if f.ranges {
		f.inRange(t, pos)
	}
	return true
}

func (f *fitting) inRange(t reflect.Type, pos int) {
	low, high := integerAt(f.b, pos)
	if l, h := integers(t); low < l || high > h {
		what := fmt.Sprint(high)
		if low < 0 {
			what = fmt.Sprint(low)
		}
		f.err = &InputError{Offset: pos, Len: len(f.b), What: fmt.Sprintf("%s into %v", what, t), Err: ErrRange}
	}
}

// place returns the path of fields, followed by ": ", to the value in b that the decoder has
// rejected. It returns "" if it does not find the value.
func (s *shape) place(b []byte) string {
	f := fitting{b: b}
	if f.walk(s, 0); f.err == nil || f.path == "" {
		return ""
	}
	return f.path + ": "
}

// bytesLike reports whether c begins a value that can be decoded into a string or a []byte.
func bytesLike(c byte) bool {
	return c >= 0xa0 && c <= 0xbf || c >= 0xc4 && c <= 0xc6 || c >= 0xd9 && c <= 0xdb
}

func integer(c byte) bool { return c <= 0x7f || c >= 0xe0 || c >= 0xcc && c <= 0xd3 }

// walk examines the value at pos, whose destination has shape s, and returns the offset of its end.
func (f *fitting) walk(s *shape, pos int) int {
	c := f.b[pos]
	if f.err != nil || s.typ == nil || s.own || c == 0xc0 {
		return skip(f.b, pos)
	}
	cl, n, body := head(f.b, pos)
	fits := false
	switch kind := s.typ.Kind(); kind {
	case reflect.Pointer:
		return f.walk(s.elem, pos)
	case reflect.Interface:
		if s.typ.NumMethod() == 0 {
			return f.any(pos)
		}
		fits = bytesLike(c) && !isBinary(c) // the interface type is error
	case reflect.Slice, reflect.Array:
		most := n
		if kind == reflect.Array {
			most = s.typ.Len()
		}
		if s.kind == sequence && cl == list && n <= most {
			return f.elements(s, n, body)
		}
		fits = s.kind != sequence && bytesLike(c) && n <= most
	case reflect.Map:
		if cl == dict {
			return f.pairs(s, n, body)
		}
	case reflect.Struct:
		if cl == dict {
			return f.record(s, n, body)
		}
		if cl == list && n == len(s.order) {
			for _, field := range s.order {
				body = f.walk(field, body)
			}
			return body
		}
		fits = cl == list && n == 0
	case reflect.Bool:
		fits = c == 0xc2 || c == 0xc3
	case reflect.Float32:
		fits = c == 0xca || f.integer(s.typ, pos)
	case reflect.Float64:
		fits = c == 0xca || c == 0xcb || f.integer(s.typ, pos)
	case reflect.String:
		fits = bytesLike(c)
	default:
		fits = f.integer(s.typ, pos)
	}
	if !fits {
		f.suspect(s.typ, pos)
	}
	return skip(f.b, pos)
}

func (f *fitting) elements(s *shape, n, pos int) int {
	for range n {
		pos = f.walk(s.elem, pos)
	}
	return pos
}

func (f *fitting) pairs(s *shape, n, pos int) int {
	for range n {
		if cl, _, _ := head(f.b, pos); s.key.typ.Kind() == reflect.Interface && (cl == list || cl == dict || isBinary(f.b[pos])) && f.err == nil {
			f.err = refuse(f.b, pos, ErrKey)
		}
		pos = f.walk(s.key, pos)
		pos = f.walk(s.elem, pos)
	}
	return pos
}

func isBinary(c byte) bool { return c >= 0xc4 && c <= 0xc6 }

func (f *fitting) record(s *shape, n, pos int) int {
	for range n {
		if c := f.b[pos]; !bytesLike(c) && c != 0xc0 {
			f.suspect(reflect.TypeFor[string](), pos)
		}
		field, name := light, []byte(nil)
		if cl, n, body := head(f.b, pos); cl == scalar {
			if known, ok := s.fields[string(f.b[body:body+n])]; ok {
				field, name = known.shape, f.b[body:body+n]
			}
		}
		before := f.err
		pos = f.walk(field, skip(f.b, pos))
		if before == nil && f.err != nil && name != nil {
			if f.path != "" {
				f.path = "." + f.path
			}
			f.path = string(name) + f.path
		}
	}
	return pos
}

// any examines the value at pos, whose type is determined by the message, and returns the offset of
// its end. The keys of maps must be strings.
func (f *fitting) any(pos int) int {
	if f.err != nil {
		return skip(f.b, pos)
	}
	cl, n, body := head(f.b, pos)
	switch cl {
	case list:
		for range n {
			body = f.any(body)
		}
		return body
	case dict:
		for range n {
			if c := f.b[body]; !bytesLike(c) && c != 0xc0 {
				f.suspect(reflect.TypeFor[string](), body)
			}
			body = f.any(skip(f.b, body))
		}
		return body
	case extension:
		if kind := f.b[body]; kind != f.extType || n != f.extSize {
			f.suspect(reflect.TypeFor[any](), pos)
			f.extType, f.extSize = kind, n
		}
	}
	return body + n
}

// suspect decodes the value at pos into a new value of type t and records an error if that fails.
// Only the decoder can determine this, because a program can register decoders.
func (f *fitting) suspect(t reflect.Type, pos int) {
	if f.err != nil || f.ranges || int64(t.Size()) > budgetFor(len(f.b))-decoderCost { // decoding allocates a t
		return
	}
	alone := f.b[pos:skip(f.b, pos)]
	if err := decode(alone, reflect.New(t).Interface(), true); err != nil {
		f.err = fmt.Errorf("byte %d of %d: %w", pos, len(f.b), err)
	}
}
