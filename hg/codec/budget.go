package codec

import (
	"fmt"
	"reflect"
)

// Sparse is implemented by types that may be far larger in memory than on the wire, and whose
// author accepts the resulting amplification: a slice of many empty elements costs one byte per
// element on the wire. Elements of such a type never cause ErrInflated.
type Sparse interface {
	DecodeSparse()
}

// inflation is the number of bytes of memory that one byte on the wire may cost without being
// counted. It is the size of a slice header, which is what an empty row of a [][]T costs with an
// honest sender.
const inflation = 24

// budgetFor returns the limit on the counted bytes for a message of wire bytes.
func budgetFor(wire int) int64 { return 4*int64(wire) + 4<<10 }

// afford returns an error if decoding b into a value of shape s would take far more memory than the
// length of b justifies. b must have passed check; values is the number of values that check
// counted. Each value is charged at most once, so messages with few values need no accounting.
func (s *shape) afford(b []byte, values int) error {
	budget := budgetFor(len(b))
	if int64(values)*s.largest <= budget {
		return nil
	}
	a := account{b: b, left: budget}
	a.walk(s, 0)
	return a.err
}

// An account walks a message and the shape of its destination in parallel and adds up the excess
// memory.
type account struct {
	b    []byte
	left int64
	err  error
}

// walk walks the value at pos with shape s and returns the offset of its end. Its recursion is
// limited to the depth allowed by the guard, with a few steps per level. It skips values that do
// not match s, which the decoder reports.
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

// charge counts the memory of an element of size bytes beyond what its bytes on the wire justify.
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

// field returns the shape of the struct field named by the key at pos.
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
