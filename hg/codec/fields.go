package codec

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/quicksilver-rpc/quicksilver/internal/schema"
)

// A FieldChecker is a Codec that compares the fields of a message with those of the type into which
// it was decoded, since the sender's type may have different fields. Msgpack implements it.
type FieldChecker interface {
	// CheckUnknown returns an error that names a field of b that the type of v, a pointer, does not
	// have. The error matches ErrUnknownField. Fields with an empty value (nil, false, 0, "", or
	// without elements) are ignored.
	CheckUnknown(b []byte, v any) error

	// CheckMissing returns an error that names a field of the type of v, a pointer, that is missing
	// from b or nil. The error matches ErrMissingField. Fields that are pointers or interfaces, and
	// those with the tag omitempty, may be missing. The elements of an array count as fields. A
	// slice or a map may be nil.
	CheckMissing(b []byte, v any) error
}

// Both methods are called with bytes that Decode has decoded without error. They do not block,
// allocate only when they return an error, and are safe for concurrent use.
var _ FieldChecker = packer{}

// Errors for fields that differ between a message and the receiver's type.
var (
	ErrUnknownField = errors.New("unknown field")
	ErrMissingField = errors.New("missing field")
)

// CheckUnknown implements FieldChecker.
func (packer) CheckUnknown(b []byte, v any) error {
	if isPlain(b, v) {
		return nil
	}
	s := shapeOf(v)
	if s.hasSameFields(b) {
		return nil
	}
	if !s.records || len(b) == 0 {
		return nil
	}
	w := fieldWalk{b: b}
	w.walk(s, 0)
	return w.error(v, ErrUnknownField)
}

// CheckMissing implements FieldChecker.
func (packer) CheckMissing(b []byte, v any) error {
	if isPlain(b, v) {
		return nil
	}
	s := shapeOf(v)
	if len(b) == 0 || s.typ == nil || s.hasSameFields(b) {
		return nil
	}
	w := fieldWalk{b: b, missing: true, hasNil: bytes.IndexByte(b, 0xc0) >= 0}
	if !s.exact && !w.hasNil {
		return nil
	}
	w.walk(s, 0)
	return w.error(v, ErrMissingField)
}

// isPlain reports whether v points to bytes or to a string and b contains a value of that type, as
// appendPlain encodes it.
func isPlain(b []byte, v any) bool {
	switch v.(type) {
	case *[]byte, *string:
		return len(b) > 0 && bytesLike(b[0])
	}
	return false
}

// maxFlat is the largest number of fields of a struct that hasSameFields supports. The encoding of
// a struct with more fields begins with more than one byte.
const maxFlat = 15

// flatten returns the value of s.flat, which is the first byte of an encoded struct s, followed by
// its encoded field names. It returns nil if the values of fields must be checked as well.
func (s *shape) flatten() (flat [][]byte) {
	if s.kind != record || s.own || s.taught || s.isTuple || len(s.order) == 0 || len(s.order) > maxFlat {
		return nil
	}
	flat = append(flat, []byte{0x80 | byte(len(s.order))})
	for i, field := range s.order {
		if field.kind != leaf || field.typ == nil || field.typ.Kind() == reflect.Array {
			return nil
		}
		flat = append(flat, appendString(nil, s.names[i]))
	}
	return flat
}

// hasSameFields reports whether the valid message b is a struct with the same fields as s, in the
// same order, none of which is nil. A peer with the same type sends such a message. hasSameFields
// returns false if the values of fields must be checked as well.
func (s *shape) hasSameFields(b []byte) bool {
	if len(s.flat) == 0 || len(b) == 0 || b[0] != s.flat[0][0] {
		return false
	}
	pos := 1
	for _, name := range s.flat[1:] {
		if !bytes.HasPrefix(b[pos:], name) {
			return false
		}
		if pos += len(name); b[pos] == 0xc0 {
			return false
		}
		pos = skip(b, pos)
	}
	return true
}

// addNeeds sets the names of the fields of the struct s, which has type t, and determines which of
// them must be present in a message.
func (s *shape) addNeeds(t *schema.Type) {
	s.isTuple = t.Tuple
	s.needs = make([]bool, len(t.Members))
	for i := range t.Members {
		m := &t.Members[i]
		s.names = append(s.names, m.Name)
		if s.needs[i] = !m.CanBeMissing() && t.Find(m.Name) == m; s.needs[i] {
			s.needed++
		}
	}
}

// isTaught reports whether the program has registered its own encoder for the struct s with the
// msgpack package. The fields of such a struct are not known.
func (s *shape) isTaught() (taught bool) {
	defer func() { // a field's method may panic for its zero value
		if recover() != nil {
			taught = false
		}
	}()
	b, err := msgpack.Marshal(reflect.New(s.typ).Interface())
	if err != nil {
		return false
	}
	cl, n, pos := head(b, 0)
	if cl != dict {
		return cl != list
	}
	for range n {
		_, length, body := head(b, pos)
		if _, ok := s.fields[string(b[body:body+length])]; !ok {
			return true
		}
		pos = skip(b, body+length)
	}
	return false
}

// hasRecords reports whether a struct is reachable from s.
func (s *shape) hasRecords(seen map[*shape]bool) bool {
	return s.reaches(seen, func(s *shape) bool { return s.kind == record })
}

// isExact reports whether a struct or an array is reachable from s. A struct must be encoded as a
// map of its fields, and an array must have all its elements.
func (s *shape) isExact(seen map[*shape]bool) bool {
	return s.reaches(seen, func(s *shape) bool { return s.kind == record || s.typ.Kind() == reflect.Array })
}

// reaches reports whether the function is returns true for s or for any shape reachable from s.
// seen contains the shapes that have been examined.
func (s *shape) reaches(seen map[*shape]bool, is func(*shape) bool) bool {
	if s == nil || seen[s] || s.typ == nil || s.own {
		return false
	}
	seen[s] = true
	if is(s) || s.elem.reaches(seen, is) || s.key.reaches(seen, is) {
		return true
	}
	for _, f := range s.fields {
		if f.shape.reaches(seen, is) {
			return true
		}
	}
	return false
}

// A fieldWalk searches for a field that only one of a valid message and its destination has. It
// walks the message together with the shape of the destination.
type fieldWalk struct {
	b       []byte
	missing bool // reports whether to search for fields missing from b; otherwise the search is for fields found only in b
	hasNil  bool // reports whether b may contain nil

	found bool
	path  string // path of fields to the result; "" for the value as a whole
	what  string // description of the result
}

func (w *fieldWalk) error(v any, err error) error {
	if !w.found {
		return nil
	}
	name := w.path
	if name == "" {
		name = "the whole"
	}
	return fmt.Errorf("codec: %s of %v: %s%w", name, reflect.TypeOf(v).Elem(), w.what, err)
}

func (w *fieldWalk) report(what string) {
	w.found, w.what = true, what
}

// within prepends the name of a struct field to the path.
func (w *fieldWalk) within(name string) {
	if w.path != "" {
		name += "." + w.path
	}
	w.path = name
}

// isDone reports whether a value of shape s can be skipped, because a result has been found or
// because no field in the value needs to be checked.
func (w *fieldWalk) isDone(s *shape) bool {
	switch {
	case w.found, s.typ == nil, s.own, s.taught:
		return true
	case w.missing:
		return !s.exact && !w.hasNil
	}
	return !s.records
}

// walk examines the value at pos, whose destination has shape s, and returns the offset of its end.
func (w *fieldWalk) walk(s *shape, pos int) int {
	if w.isDone(s) {
		return skip(w.b, pos)
	}
	if w.b[pos] == 0xc0 {
		w.checkNil(s)
		return pos + 1
	}
	cl, n, body := head(w.b, pos)
	switch kind := s.typ.Kind(); {
	case kind == reflect.Pointer:
		return w.walk(s.elem, pos)
	case kind == reflect.Array && w.missing && n < s.typ.Len() && (cl == list || bytesLike(w.b[pos])):
		w.report(fmt.Sprintf("array of %d elements, want %d: ", n, s.typ.Len()))
	case s.kind == sequence && cl == list:
		for range n {
			body = w.walk(s.elem, body)
		}
		return body
	case s.kind == table && cl == dict:
		for range n {
			body = w.walk(s.elem, w.walk(s.key, body))
		}
		return body
	case s.kind == record && cl == dict:
		return w.record(s, n, body)
	case s.kind == record && cl == list && s.isTuple && n == len(s.order):
		return w.tuple(s, body)
	case s.kind == record && cl == list && n > 0: // the decoder accepts an array as a struct's fields in order
		w.report("array for a struct: ")
	case s.kind == record && cl == list && w.missing && s.needed > 0:
		w.reportNeeded(s, func(int) bool { return false })
	}
	return skip(w.b, pos)
}

// checkNil records a result if nil is not allowed in place of a value of shape s.
func (w *fieldWalk) checkNil(s *shape) {
	if !w.missing {
		return
	}
	switch s.typ.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Slice, reflect.Map:
	case reflect.Struct:
		if s.needed > 0 {
			w.report("nil: ")
		}
	default:
		w.report("nil: ")
	}
}

// tuple examines the fields of the struct s, which is encoded as an array whose first element is at
// pos. It returns the offset of the end.
func (w *fieldWalk) tuple(s *shape, pos int) int {
	for i, field := range s.order {
		if w.b[pos] == 0xc0 && !s.needs[i] {
			pos++
			continue
		}
		if pos = w.walk(field, pos); w.found {
			w.within(s.names[i])
			break
		}
	}
	return pos
}

// record examines the n fields of the struct s, the first of which is at pos, and returns the
// offset of the end.
func (w *fieldWalk) record(s *shape, n, pos int) int {
	var few [4]uint64
	seen := few[:]
	if len(s.names) > 64*len(few) {
		seen = make([]uint64, len(s.names)/64+1)
	}
	next, needed := 0, 0
	for range n {
		_, length, body := head(w.b, pos)
		name := w.b[body : body+length]
		pos = body + length
		at := place{light, -1}
		if next < len(s.names) && s.names[next] == string(name) { // the order is normally the same
			at = place{s.order[next], next}
		} else if known, ok := s.fields[string(name)]; ok {
			at = known
		} else if !w.missing && !isEmpty(w.b, pos) {
			w.report("")
			w.within(string(name))
			return pos
		}
		if i := at.index; i >= 0 {
			next = i + 1
			if bit := uint64(1) << (i % 64); s.needs[i] && seen[i/64]&bit == 0 {
				seen[i/64] |= bit
				needed++
			}
			if w.b[pos] == 0xc0 && !s.needs[i] {
				pos++
				continue
			}
		}
		if pos = w.walk(at.shape, pos); w.found {
			w.within(string(name))
			return pos
		}
	}
	if w.missing && needed < s.needed {
		w.reportNeeded(s, func(i int) bool { return seen[i/64]&(1<<(i%64)) != 0 })
	}
	return pos
}

// reportNeeded records as the result the first required field of the struct s for which seen
// returns false.
func (w *fieldWalk) reportNeeded(s *shape, seen func(i int) bool) {
	for i, needs := range s.needs {
		if needs && !seen(i) {
			w.report("")
			w.within(s.names[i])
			return
		}
	}
}

// isEmpty reports whether the value at pos is empty: nil, false, 0, "", or without elements.
func isEmpty(b []byte, pos int) bool {
	switch c := b[pos]; {
	case c == 0xc0, c == 0xc2, c == 0:
		return true
	case c >= 0xca && c <= 0xd3: // numbers
		_, n, body := head(b, pos)
		return len(bytes.Trim(b[body:body+n], "\x00")) == 0
	}
	cl, n, _ := head(b, pos)
	return n == 0 && (cl == list || cl == dict || bytesLike(b[pos]))
}

// floatIntegers returns the range of integers that a float of the given size in bits represents
// exactly.
func floatIntegers(bits int) (low int64, high uint64) {
	digits := 53
	if bits == 32 {
		digits = 24
	}
	return math.MinInt64 >> (63 - digits), 1 << digits
}
