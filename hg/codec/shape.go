package codec

import (
	"encoding"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/vmihailenco/msgpack/v5"
)

// A shape is what the budget needs to know about a destination type: where in it the wire decides how much memory is
// allocated. It follows the rules by which msgpack picks fields and decoders.
type shape struct {
	kind shapeKind
	typ  reflect.Type

	elem, key         *shape
	elemSize, keySize int64 // memory of one element, one key; 0 if it is too small to be counted

	fields map[string]*shape // by the names that a struct has on the wire
	order  []*shape          // of a struct that is encoded as an array

	largest int64 // element that is counted, here or further down; 0 if there is none
	dense   int64 // memory that one value on the wire may cost, here or further down; 0 if it is no more than the value
	own     bool  // a method of the type takes over from the decoder

	low  int64  // every integer from low to high fits all integers, here and further down
	high uint64 //
}

type shapeKind uint8

const (
	leaf     shapeKind = iota // allocates nothing that is counted
	pointer                   // allocates an element, unless nil
	sequence                  // allocates as many elements as the wire says
	table                     // the same for keys and elements
	record
)

var (
	light  = &shape{}
	shapes sync.Map // reflect.Type of a pointer → *shape of its target

	sparseType = reflect.TypeFor[Sparse]()
	ownDecoder = []reflect.Type{
		reflect.TypeFor[msgpack.CustomDecoder](),
		reflect.TypeFor[msgpack.Unmarshaler](),
		reflect.TypeFor[encoding.BinaryUnmarshaler](),
		reflect.TypeFor[encoding.TextUnmarshaler](),
	}
)

// compile returns the shape of t.
func compile(t reflect.Type) *shape {
	c := compiler{}
	s := c.compile(t)
	for _, s := range c {
		s.largest = s.reach(map[*shape]bool{})
		s.dense = s.densest(map[*shape]bool{})
		s.low, s.high = s.narrowest(map[*shape]bool{})
	}
	return s
}

// A compiler remembers what it has begun, because types may contain themselves.
type compiler map[reflect.Type]*shape

func (c compiler) compile(t reflect.Type) *shape {
	if s := c[t]; s != nil {
		return s
	}
	s := &shape{typ: t}
	c[t] = s
	if decodesItself(t) {
		s.own = true
		return s
	}
	switch t.Kind() {
	case reflect.Pointer:
		s.kind = pointer
		s.elem, s.elemSize = c.compile(t.Elem()), counted(t.Elem())
	case reflect.Slice:
		if t.Elem().Kind() != reflect.Uint8 {
			s.kind = sequence
			s.elem, s.elemSize = c.compile(t.Elem()), counted(t.Elem())
		}
	case reflect.Array: // its elements are part of what contains it
		if t.Elem().Kind() != reflect.Uint8 {
			s.kind = sequence
			s.elem = c.compile(t.Elem())
		}
	case reflect.Map:
		s.kind = table
		s.key, s.keySize = c.compile(t.Key()), counted(t.Key())
		s.elem, s.elemSize = c.compile(t.Elem()), counted(t.Elem())
	case reflect.Struct:
		s.kind = record
		fs := c.fields(t)
		s.fields = fs.byName
		for _, f := range fs.order {
			s.order = append(s.order, f.shape)
		}
	}
	return s
}

// reach returns the largest counted size that can be reached from s.
func (s *shape) reach(seen map[*shape]bool) int64 {
	if s == nil || seen[s] {
		return 0
	}
	seen[s] = true
	largest := max(s.elemSize, s.keySize, s.elem.reach(seen), s.key.reach(seen))
	for _, f := range s.fields {
		largest = max(largest, f.reach(seen))
	}
	return largest
}

// narrowest returns which integers fit all that can be reached from s.
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
		narrow(f)
	}
	return low, high
}

// integers returns which integers fit t; all for a type of another kind.
func integers(t reflect.Type) (low int64, high uint64) {
	switch k := t.Kind(); {
	case k >= reflect.Int && k <= reflect.Int64:
		return math.MinInt64 >> (64 - t.Bits()), math.MaxInt64 >> (64 - t.Bits())
	case k >= reflect.Uint && k <= reflect.Uint64:
		return 0, math.MaxUint64 >> (64 - t.Bits())
	}
	return math.MinInt64, math.MaxUint64
}

// pairCost is the memory of a pair in a map, at most: Go gives the smallest map room for eight.
const pairCost = 400

// densest returns the most memory that one value on the wire may cost in what can be reached from s. It errs upwards.
func (s *shape) densest(seen map[*shape]bool) int64 {
	if s == nil || seen[s] || s.typ == nil || s.own {
		return 0
	}
	seen[s] = true
	most := max(s.elem.densest(seen), s.key.densest(seen))
	for _, f := range s.fields {
		most = max(most, f.densest(seen))
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

// decodesItself reports whether a method of t, or of *t, takes over from the decoder.
func decodesItself(t reflect.Type) bool {
	for _, i := range ownDecoder {
		if implements(t, i) {
			return true
		}
	}
	return false
}

func implements(t, i reflect.Type) bool {
	return t.Implements(i) || reflect.PointerTo(t).Implements(i)
}

// counted returns the memory of an element of type t, or 0 if its bytes on the wire always pay for it.
func counted(t reflect.Type) int64 {
	if implements(t, sparseType) {
		return 0
	}
	if size := footprint(t); size > inflation {
		return size
	}
	return 0
}

// footprint is the size of t and of the structs that it embeds by pointer, which any field of theirs brings along.
func footprint(t reflect.Type) int64 {
	return footprintSeen(t, map[reflect.Type]bool{})
}

func footprintSeen(t reflect.Type, seen map[reflect.Type]bool) int64 {
	size := int64(t.Size())
	if t.Kind() != reflect.Struct || seen[t] {
		return size
	}
	seen[t] = true
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous && f.Type.Kind() == reflect.Pointer && f.Type.Elem().Kind() == reflect.Struct {
			size += footprintSeen(f.Type.Elem(), seen)
		}
	}
	return size
}

// fieldSet holds the fields of a struct: those that it has as an array, in order, and those that it knows by name, which
// are the same and further names for some of them.
type fieldSet struct {
	order  []namedShape
	byName map[string]*shape
}

type namedShape struct {
	name string
	*shape
}

func (fs *fieldSet) add(name string, s *shape) {
	fs.order = append(fs.order, namedShape{name, s})
	fs.byName[name] = s
}

func (c compiler) fields(t reflect.Type) *fieldSet {
	fs := &fieldSet{byName: map[string]*shape{}}
	for i := range t.NumField() {
		f := t.Field(i)
		name, options := parseTag(f.Tag.Get("msgpack"))
		if name == "-" || f.PkgPath != "" && !f.Anonymous {
			continue
		}
		if name == "" {
			name = f.Name
		}
		s := c.compile(f.Type)
		if f.Anonymous && !slices.Contains(options, "noinline") && c.inline(fs, f.Type, slices.Contains(options, "inline")) {
			fs.byName[name] = s
			continue
		}
		fs.add(name, s)
		for _, o := range options {
			if alias, ok := strings.CutPrefix(o, "alias:"); ok {
				fs.byName[alias] = s
			}
		}
	}
	return fs
}

// inline adds the fields of the embedded type t to fs. Where two fields have one name it keeps the earlier one if the tag
// insists on inlining, and else adds nothing and reports false.
func (c compiler) inline(fs *fieldSet, t reflect.Type, insist bool) bool {
	for t.Kind() == reflect.Pointer && !decodesItself(t) {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || decodesItself(t) {
		return false
	}
	inner := c.fields(t).order
	taken := func(f namedShape) bool { return fs.byName[f.name] != nil }
	if !insist && slices.ContainsFunc(inner, taken) {
		return false
	}
	for _, f := range inner {
		if !taken(f) {
			fs.add(f.name, f.shape)
		}
	}
	return true
}

// parseTag splits a struct tag of the form name,option,key:value.
func parseTag(tag string) (name string, options []string) {
	parts := strings.Split(strings.ReplaceAll(tag, "'", ""), ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts[0], parts[1:]
}
