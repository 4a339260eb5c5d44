package codec

import (
	"fmt"
	"reflect"
)

// Sparse is implemented by types whose values may be far larger in memory than on the wire, and for
// which this is acceptable. A slice of many empty elements of such a type costs only one byte per
// element on the wire. Elements of the type never cause ErrInflated.
type Sparse interface {
	DecodeSparse()
}

// inflation is the number of bytes of memory that each byte on the wire may cost without being
// counted. It is the size of a slice header, which is the cost of an empty row of a [][]T.
const inflation = 24

// budgetFor returns the number of excess bytes of memory that decoding a message of the given
// length may cost.
func budgetFor(wire int) int64 { return 4*int64(wire) + 4<<10 }

// afford returns an error if decoding b into a value of shape s would take far more memory than the
// length of b justifies. b must have passed check, and values must be the number of values that
// check has counted in b. Since each value is charged at most once, messages with few values are
// accepted without an examination.
func (s *shape) afford(b []byte, values int) error {
	budget := budgetFor(len(b))
	if int64(values)*s.largest <= budget {
		return nil
	}
	a := account{b: b, left: budget}
	a.walk(s, 0)
	return a.err
}

// An account adds up the memory that the elements of a message would cost beyond what its length
// justifies. It walks the message together with the shape of its destination.
type account struct {
	b    []byte
	left int64
	err  error
}

// walk charges the elements of the value at pos, whose destination has shape s, and returns the
// offset of the end of the value. It recurses no deeper than the guard permits, apart from a few
// steps per level. It skips values that do not match s, because the decoder rejects them.
func (a *account) walk(s *shape, pos int) int {
	if s.largest == 0 || a.err != nil {
		return skip(a.b, pos)
	}
	cl, n, body := head(a.b, pos)
	switch {
	case s.kind == pointer && a.b[pos] != 0xc0:
		end := a.walk(s.elem, pos)
		a.charge(s.elemSize, s, pos, end)
		return end
	case s.kind == sequence && cl == list:
		pos = body
		for range n {
			pos = a.element(s.elem, s.elemSize, s, pos)
		}
		return pos
	case s.kind == table && cl == dict:
		pos = body
		for range n {
			pos = a.element(s.key, s.keySize, s, pos)
			pos = a.element(s.elem, s.elemSize, s, pos)
		}
		return pos
	case s.kind == record && cl == dict:
		pos = body
		for range n {
			field := a.field(s, pos)
			pos = a.walk(field, skip(a.b, pos))
		}
		return pos
	case s.kind == record && cl == list && n == len(s.order):
		pos = body
		for i := range n {
			pos = a.walk(s.order[i], pos)
		}
		return pos
	}
	return skip(a.b, pos)
}

func (a *account) element(s *shape, size int64, in *shape, pos int) int {
	end := a.walk(s, pos)
	a.charge(size, in, pos, end)
	return end
}

// charge counts the memory of an element of size bytes, except for the part that is justified by
// its bytes on the wire, from pos to end.
func (a *account) charge(size int64, in *shape, pos, end int) {
	excess := size - inflation*int64(end-pos)
	if excess <= 0 || a.err != nil {
		return
	}
	if a.left -= excess; a.left < 0 {
		what := fmt.Sprintf("%d bytes of memory for %d bytes of input in %v", size, end-pos, in.typ)
		a.err = &InputError{Offset: pos, Len: len(a.b), What: what, Err: ErrInflated}
	}
}

// field returns the shape of the field of struct s that is named by the map key at pos.
func (a *account) field(s *shape, pos int) *shape {
	cl, n, body := head(a.b, pos)
	if cl != scalar {
		return light
	}
	if f, ok := s.fields[string(a.b[body:body+n])]; ok {
		return f.shape
	}
	return light
}

// shapeOf returns the shape of the value that v points to.
func shapeOf(v any) *shape {
	t := reflect.TypeOf(v)
	if t.Kind() != reflect.Pointer {
		return light // the decoder reports it
	}
	if s, ok := shapes.Load(t); ok {
		return s.(*shape)
	}
	s, _ := shapes.LoadOrStore(t, compile(t.Elem()))
	return s.(*shape)
}
