package codec

import (
	"math"
	"reflect"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/internal/schema"
)

// A shape describes the type of a destination. It identifies the places at which the message
// determines how much memory is allocated, and follows the rules by which the msgpack package
// selects fields and decoders.
type shape struct {
	kind shapeKind
	typ  reflect.Type

	elem, key         *shape
	elemSize, keySize int64 // size in bytes of one element and one key; 0 if too small to be counted

	// fields of a struct by their names on the wire, including names that only the decoder accepts
	fields map[string]place
	order  []*shape // fields in the order of the encoding
	names  []string // names of the fields in order
	needs  []bool   // whether each field in order must be present
	needed int      // number of true values in needs

	// flat is the first byte of an encoded struct with all fields, followed by each of its encoded
	// names. It is nil if the values must be checked.
	flat [][]byte

	isTuple bool // reports whether the struct is encoded as an array

	taught bool // reports whether the program has registered an encoder for the struct

	records bool // reports whether this shape is or contains a struct
	exact   bool // reports whether this shape is or contains a struct or an array; see isExact

	largest int64 // largest counted element in this shape, including nested ones; 0 if there is none
	// dense is the memory that one value on the wire may cost in this shape, including nested ones.
	// It is 0 if that is no more than the value itself.
	dense int64
	own   bool // reports whether a method of the type decodes its values

	low  int64  // smallest integer that fits all integer types in this shape, including nested ones
	high uint64 // largest such integer
}

// A place is a field of a struct and its index in the order of the encoding. The index is -1 for
// the name of an embedded struct.
type place struct {
	*shape
	index int
}

type shapeKind uint8

const (
	leaf     shapeKind = iota // allocates no counted memory
	pointer                   // allocates an element, unless nil
	sequence                  // allocates as many elements as the message contains
	table                     // allocates as many keys and elements as the message contains
	record
)

var (
	light  = &shape{}
	shapes sync.Map // reflect.Type of a pointer → *shape of its target

	sparseType = reflect.TypeFor[Sparse]()
)

// compile returns the shape of t.
func compile(t reflect.Type) *shape {
	c := compiler{}
	s := c.compile(schema.Of(t))
	for _, s := range c {
		s.largest = s.reach(map[*shape]bool{})
		s.dense = s.densest(map[*shape]bool{})
		s.low, s.high = s.narrowest(map[*shape]bool{})
		s.records, s.exact = s.hasRecords(map[*shape]bool{}), s.isExact(map[*shape]bool{})
		s.flat = s.flatten()
	}
	return s
}

// A compiler holds the shapes that have been begun, because a type may contain itself.
type compiler map[*schema.Type]*shape

func (c compiler) compile(t *schema.Type) *shape {
	if s := c[t]; s != nil {
		return s
	}
	s := &shape{typ: t.Go}
	c[t] = s
	if t.Decodes != "" {
		s.own = true
		return s
	}
	switch t.Kind {
	case reflect.Pointer:
		s.kind = pointer
		s.elem, s.elemSize = c.compile(t.Elem), counted(t.Elem)
	case reflect.Slice:
		if t.Elem.Kind != reflect.Uint8 {
			s.kind = sequence
			s.elem, s.elemSize = c.compile(t.Elem), counted(t.Elem)
		}
	case reflect.Array: // its elements are part of the containing value
		if t.Elem.Kind != reflect.Uint8 {
			s.kind = sequence
			s.elem = c.compile(t.Elem)
		}
	case reflect.Map:
		s.kind = table
		s.key, s.keySize = c.compile(t.Key), counted(t.Key)
		s.elem, s.elemSize = c.compile(t.Elem), counted(t.Elem)
	case reflect.Struct:
		s.kind = record
		s.fields = map[string]place{}
		for i, m := range t.Members {
			field := c.compile(m.Type)
			s.order = append(s.order, field)
			s.fields[m.Name] = place{field, i}
		}
		s.addNeeds(t)
		for _, a := range t.Aliases {
			s.fields[a.Name] = place{c.compile(a.Type), a.Member}
		}
		s.taught = s.isTaught()
	}
	return s
}

// reach returns the size of the largest counted element reachable from s, or 0 if there is none.
// seen contains the shapes that have been examined.
func (s *shape) reach(seen map[*shape]bool) int64 {
	if s == nil || seen[s] {
		return 0
	}
	seen[s] = true
	largest := max(s.elemSize, s.keySize, s.elem.reach(seen), s.key.reach(seen))
	for _, f := range s.fields {
		largest = max(largest, f.shape.reach(seen))
	}
	return largest
}

// narrowest returns the range of integers that fit every integer type reachable from s. seen
// contains the shapes that have been examined.
func (s *shape) narrowest(seen map[*shape]bool) (low int64, high uint64) {
	low, high = math.MinInt64, math.MaxUint64
	if s == nil || seen[s] || s.typ == nil || s.own {
		return low, high
	}
	seen[s] = true
	low, high = integers(s.typ)
	narrow := func(s *shape) {
		l, h := s.narrowest(seen)
		low, high = max(low, l), min(high, h)
	}
	narrow(s.elem)
	narrow(s.key)
	for _, f := range s.fields {
		narrow(f.shape)
	}
	return low, high
}

// integers returns the range of integers that t can represent, exactly if t is a float type. If t
// is neither an integer type nor a float type, the range contains all integers.
func integers(t reflect.Type) (low int64, high uint64) {
	switch k := t.Kind(); {
	case k >= reflect.Int && k <= reflect.Int64:
		return math.MinInt64 >> (64 - t.Bits()), math.MaxInt64 >> (64 - t.Bits())
	case k >= reflect.Uint && k <= reflect.Uint64:
		return 0, math.MaxUint64 >> (64 - t.Bits())
	case k == reflect.Float32, k == reflect.Float64:
		return floatIntegers(t.Bits())
	}
	return math.MinInt64, math.MaxUint64
}

// pairCost is an upper bound on the memory, in bytes, that one pair of a map may cost. The smallest
// Go map has room for eight pairs.
const pairCost = 400

// densest returns an upper bound on the memory that one value on the wire may cost in the shapes
// reachable from s.
func (s *shape) densest(seen map[*shape]bool) int64 {
	if s == nil || seen[s] || s.typ == nil || s.own {
		return 0
	}
	seen[s] = true
	most := max(s.elem.densest(seen), s.key.densest(seen))
	for _, f := range s.fields {
		most = max(most, f.shape.densest(seen))
	}
	switch {
	case s.typ.Kind() == reflect.Interface, s.kind == table:
		most += pairCost
	case s.kind == sequence, s.kind == pointer:
		most += 3 * int64(s.typ.Elem().Size())
	case s.typ.Kind() == reflect.Slice, s.typ.Kind() == reflect.Array, s.typ.Kind() == reflect.String:
		most = max(most, 32)
	}
	return most
}

// counted returns the size of an element of type t in bytes, or 0 if its bytes on the wire always
// justify that size.
func counted(t *schema.Type) int64 {
	if t.Go.Implements(sparseType) || reflect.PointerTo(t.Go).Implements(sparseType) {
		return 0
	}
	if size := footprint(t, map[*schema.Type]bool{}); size > inflation {
		return size
	}
	return 0
}

// footprint returns the size of t in bytes plus the sizes of the structs that t embeds by pointer,
// which are allocated when any of their fields is decoded.
func footprint(t *schema.Type, seen map[*schema.Type]bool) int64 {
	size := int64(t.Go.Size())
	if seen[t] {
		return size
	}
	seen[t] = true
	for _, f := range t.Fields {
		if f.Embedded && f.Type.Kind == reflect.Pointer && f.Type.Elem.Kind == reflect.Struct {
			size += footprint(f.Type.Elem, seen)
		}
	}
	return size
}
