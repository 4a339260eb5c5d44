package schema

import (
	"encoding"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

// A Type is a type as its values are on the wire.
type Type struct {
	Go   reflect.Type // nil for a type that was parsed
	Kind reflect.Kind // Invalid for a type that was parsed and of which only Word is known
	// the text of a leaf: int8, time.Time, netip.Addr(binary); "" for a type with elements or
	// members
	Word string
	Name string // the name of a struct, with its package; "" if it has none
	Len  int    // the length of an array

	Key, Elem *Type
	Fields    []Field  // the fields as a struct declares them; nil for a type that was parsed
	Members   []Member // the members of a struct, in the order in which they are encoded
	Aliases   []Alias  // the aliases of a struct
	Tuple     bool     // a struct is encoded as an array

	Encodes, Decodes Coding // the method by which the type encodes, and decodes, itself; "" if it does not
}

// A Coding is the kind of methods by which a type encodes or decodes itself.
type Coding string

// The methods, in the order in which msgpack looks for them.
const (
	Own    Coding = "own" // the methods of package msgpack, which write any value
	Binary Coding = "binary"
	Text   Coding = "text"
)

// Coding returns how t encodes or decodes itself; "" if it does neither.
func (t *Type) Coding() Coding {
	for _, m := range []Coding{Own, Binary, Text} {
		if t.Encodes == m || t.Decodes == m {
			return m
		}
	}
	return ""
}

// A Field is a field as a struct declares it.
type Field struct {
	Name               string // in Go
	Tag                string // the name that the tag gives, or "-"; "" if it gives none
	Options            []string
	Exported, Embedded bool
	Type               *Type
}

// Sent reports whether the field, or those of the struct in it, are on the wire.
func (f *Field) Sent() bool { return f.Tag != "-" && (f.Exported || f.Embedded) }

// WireName returns the name of the field on the wire.
func (f *Field) WireName() string {
	if f.Tag != "" {
		return f.Tag
	}
	return f.Name
}

// A Member is a field on the wire.
type Member struct {
	Name string
	Type *Type
	// it may be left out, or nil for its type: omitempty, and fields of a struct that is embedded
	// by pointer
	Optional bool
}

// An Alias is a name that only the decoder accepts.
type Alias struct {
	Name   string
	Type   *Type
	Member int // index in Members; -1 for an embedded struct, whose fields are members themselves
}

// CanBeMissing reports whether a reader sees that the member was not sent, or does not need it: it
// is a pointer or an interface, which is nil then, or its tag has omitempty.
func (m *Member) CanBeMissing() bool {
	return m.Optional || m.Type.Kind == reflect.Pointer || m.Type.Kind == reflect.Interface
}

// Find returns the member of a name, the last of several; nil if there is none.
func (t *Type) Find(name string) *Member {
	for i := range slices.Backward(t.Members) {
		if t.Members[i].Name == name {
			return &t.Members[i]
		}
	}
	return nil
}

var (
	types     sync.Map   // reflect.Type → *Type, complete
	buildMu   sync.Mutex // one at a time completes types
	leafWords sync.Map   // reflect.Type → string, of NameLeaf

	timeType     = reflect.TypeFor[time.Time]()
	durationType = reflect.TypeFor[time.Duration]()
	anyType      = reflect.TypeFor[any]()
)

// NameLeaf gives a type that encodes itself a word of its own, and returns the type. It is called
// before Of sees the type.
func NameLeaf(t reflect.Type, word string) reflect.Type {
	leafWords.Store(t, word)
	return t
}

// Of returns the Type of t. It is built once.
func Of(t reflect.Type) *Type {
	if known, ok := types.Load(t); ok {
		return known.(*Type)
	}
	buildMu.Lock()
	defer buildMu.Unlock()
	b := typeBuilder{}
	built := b.addType(t)
	for _, t := range b {
		if t.Kind == reflect.Struct {
			t.addMembers()
		}
	}
	for t, built := range b {
		types.Store(t, built)
	}
	return built
}

// A typeBuilder holds the types that are being built, because types may contain themselves.
type typeBuilder map[reflect.Type]*Type

func (b typeBuilder) addType(t reflect.Type) *Type {
	if known, ok := types.Load(t); ok {
		return known.(*Type)
	}
	if begun := b[t]; begun != nil {
		return begun
	}
	s := &Type{Go: t, Kind: t.Kind()}
	s.Encodes, s.Decodes = findCodings(t)
	s.Word = leafWordOf(s)
	b[t] = s
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Chan:
		s.Elem = b.addType(t.Elem())
	case reflect.Array:
		s.Elem, s.Len = b.addType(t.Elem()), t.Len()
	case reflect.Map:
		s.Key, s.Elem = b.addType(t.Key()), b.addType(t.Elem())
	case reflect.Struct:
		if s.Word == "" {
			s.Name = qualifiedName(t)
		}
		for i := range t.NumField() {
			f := t.Field(i)
			tag, options := ParseTag(f.Tag.Get("msgpack"))
			s.Fields = append(s.Fields, Field{Name: f.Name, Tag: tag, Options: options, Exported: f.IsExported(), Embedded: f.Anonymous, Type: b.addType(f.Type)})
		}
	}
	return s
}

// ParseTag splits a struct tag of the form name,option,key:value.
func ParseTag(tag string) (name string, options []string) {
	parts := strings.Split(strings.ReplaceAll(tag, "'", ""), ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts[0], parts[1:]
}

var codingMethods = []struct {
	encode, decode reflect.Type
	is             Coding
}{
	{reflect.TypeFor[msgpack.CustomEncoder](), reflect.TypeFor[msgpack.CustomDecoder](), Own},
	{reflect.TypeFor[msgpack.Marshaler](), reflect.TypeFor[msgpack.Unmarshaler](), Own},
	{reflect.TypeFor[encoding.BinaryMarshaler](), reflect.TypeFor[encoding.BinaryUnmarshaler](), Binary},
	{reflect.TypeFor[encoding.TextMarshaler](), reflect.TypeFor[encoding.TextUnmarshaler](), Text},
}

// findCodings returns the methods by which t, or *t, encodes and decodes itself.
func findCodings(t reflect.Type) (encodes, decodes Coding) {
	implements := func(i reflect.Type) bool { return t.Implements(i) || reflect.PointerTo(t).Implements(i) }
	for _, m := range slices.Backward(codingMethods) {
		if implements(m.encode) {
			encodes = m.is
		}
		if implements(m.decode) {
			decodes = m.is
		}
	}
	return encodes, decodes
}

// leafWordOf returns the text of a type that is not described by its elements; "" for others.
func leafWordOf(s *Type) string {
	t := s.Go
	if word, ok := leafWords.Load(t); ok {
		return word.(string)
	}
	if t == timeType || t == durationType {
		return t.String()
	}
	switch t.Kind() {
	case reflect.Interface:
		if t == anyType || t.Name() == "" {
			return "any"
		}
		return qualifiedName(t)
	case reflect.Pointer:
		return ""
	}
	if m := s.Coding(); m != "" {
		name := qualifiedName(t)
		if name == "" {
			name = "any"
		}
		return name + "(" + string(m) + ")"
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Array, reflect.Map, reflect.Struct:
		return ""
	}
	return t.Kind().String()
}

// qualifiedName returns the name of a type with that of its package; "" if it has none. Type
// arguments are left out.
func qualifiedName(t reflect.Type) string {
	if t.Name() == "" {
		return ""
	}
	name, _, _ := strings.Cut(t.String(), "[")
	return name
}

// addMembers finds the fields of a struct on the wire by the rules of msgpack.
func (t *Type) addMembers() {
	t.Members, t.Aliases, t.Tuple = t.collectMembers(map[*Type]bool{})
}

// collectMembers returns the members of t; inside are the structs that are being inlined.
func (t *Type) collectMembers(inside map[*Type]bool) (members []Member, aliases []Alias, tuple bool) {
	inside[t] = true
	defer delete(inside, t)
	omitEmpty := false
	taken := func(name string) bool {
		return slices.ContainsFunc(members, func(m Member) bool { return m.Name == name }) ||
			slices.ContainsFunc(aliases, func(a Alias) bool { return a.Name == name })
	}
	for i := range t.Fields {
		f := &t.Fields[i]
		if f.Name == "_msgpack" && f.Tag != "-" {
			tuple = slices.Contains(f.Options, "as_array") || slices.Contains(f.Options, "asArray")
			omitEmpty = omitEmpty || slices.Contains(f.Options, "omitempty")
		}
		if !f.Sent() {
			continue
		}
		if inner, byPointer := f.inlinedStruct(); inner != nil && !inside[inner] {
			added, _, _ := inner.collectMembers(inside)
			hidden := func(m Member) bool { return taken(m.Name) }
			if insists := slices.Contains(f.Options, "inline"); insists || !slices.ContainsFunc(added, hidden) {
				added = slices.DeleteFunc(added, hidden)
				for i := range added {
					added[i].Optional = added[i].Optional || byPointer
				}
				members = append(members, added...)
				aliases = append(aliases, Alias{f.WireName(), f.Type, -1})
				continue
			}
		}
		members = append(members, Member{f.WireName(), f.Type, omitEmpty || slices.Contains(f.Options, "omitempty")})
		for _, o := range f.Options {
			if alias, ok := strings.CutPrefix(o, "alias:"); ok {
				aliases = append(aliases, Alias{alias, f.Type, len(members) - 1})
			}
		}
	}
	return members, aliases, tuple
}

// inlinedStruct returns the embedded struct f if its fields are encoded as those of the outer
// struct; nil if they are not.
func (f *Field) inlinedStruct() (inner *Type, byPointer bool) {
	if !f.Embedded || slices.Contains(f.Options, "noinline") {
		return nil, false
	}
	for inner = f.Type; inner.Kind == reflect.Pointer; inner = inner.Elem {
		byPointer = true
	}
	if inner.Kind != reflect.Struct || inner.Coding() != "" {
		return nil, false
	}
	return inner, byPointer
}
