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

// A Type describes a type in terms of its wire representation.
type Type struct {
	Go   reflect.Type // nil for a parsed type
	Kind reflect.Kind // Invalid for a parsed type of which only Word is known
	// Word is the text for a leaf, such as int8, time.Time, or netip.Addr(binary). It is "" for a
	// type with elements or members.
	Word string
	Name string // package-qualified name of a struct; "" if it has none
	Len  int    // length of an array

	Key, Elem *Type
	Fields    []Field  // fields in declaration order; nil for a parsed type
	Members   []Member // members of a struct, in the order in which they are encoded
	Aliases   []Alias  // aliases accepted for members of a struct
	Tuple     bool     // whether a struct is encoded as an array

	Encodes, Decodes Coding // methods by which the type encodes and decodes itself; "" if it does not
}

// A Coding identifies the kind of methods by which a type encodes or decodes itself.
type Coding string

// The codings, in the order in which msgpack looks for them.
const (
	Own    Coding = "own" // methods defined by package msgpack, which write any value
	Binary Coding = "binary"
	Text   Coding = "text"
)

// Coding returns how t encodes or decodes itself, or "" if it does neither.
func (t *Type) Coding() Coding {
	for _, m := range []Coding{Own, Binary, Text} {
		if t.Encodes == m || t.Decodes == m {
			return m
		}
	}
	return ""
}

// A Field is a struct field as declared.
type Field struct {
	Name               string // Go name
	Tag                string // name given by the tag, or "-"; "" if the tag gives none
	Options            []string
	Exported, Embedded bool
	Type               *Type
}

// Sent reports whether the field is sent or, for an embedded struct, whether its fields are.
func (f *Field) Sent() bool { return f.Tag != "-" && (f.Exported || f.Embedded) }

// WireName returns the field's name on the wire.
func (f *Field) WireName() string {
	if f.Tag != "" {
		return f.Tag
	}
	return f.Name
}

// A Member is a field as sent on the wire.
type Member struct {
	Name string
	Type *Type
	// Optional means that the member may be omitted or may be nil even if its type has no nil
	// value, because it has the option omitempty or is a field of a struct embedded by pointer.
	Optional bool
}

// An Alias is a name accepted only by the decoder.
type Alias struct {
	Name   string
	Type   *Type
	Member int // index in Members; -1 for an embedded struct, whose fields are themselves members
}

// CanBeMissing reports whether a reader can detect that the member was not sent, or does not
// require it. It is true if the member is a pointer or interface, which is then nil, or has
// omitempty in its tag.
func (m *Member) CanBeMissing() bool {
	return m.Optional || m.Type.Kind == reflect.Pointer || m.Type.Kind == reflect.Interface
}

// Find returns the member with the given name, or nil if there is none. If several members have the
// name, it returns the last one.
func (t *Type) Find(name string) *Member {
	for i := range slices.Backward(t.Members) {
		if t.Members[i].Name == name {
			return &t.Members[i]
		}
	}
	return nil
}

var (
	types     sync.Map   // map from reflect.Type to a complete *Type
	buildMu   sync.Mutex // held while building types
	leafWords sync.Map   // map from reflect.Type to string, set by NameLeaf

	timeType     = reflect.TypeFor[time.Time]()
	durationType = reflect.TypeFor[time.Duration]()
	anyType      = reflect.TypeFor[any]()
)

// NameLeaf sets the word that describes a type that encodes itself, and returns the type. It must
// be called before the type is passed to Of.
func NameLeaf(t reflect.Type, word string) reflect.Type {
	leafWords.Store(t, word)
	return t
}

// Of returns the Type that describes t. Each Type is built only once.
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

// A typeBuilder holds the types being built, because types may contain themselves.
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

// findCodings returns the codings by which t or *t encodes and decodes itself.
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

// leafWordOf returns the word for a type that is not described by its elements, or "" for any other
// type.
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

// qualifiedName returns the package-qualified name of t without type arguments, or "" if t has no
// name.
func qualifiedName(t reflect.Type) string {
	if t.Name() == "" {
		return ""
	}
	name, _, _ := strings.Cut(t.String(), "[")
	return name
}

// addMembers determines the wire fields of a struct according to the rules of msgpack.
func (t *Type) addMembers() {
	t.Members, t.Aliases, t.Tuple = t.collectMembers(map[*Type]bool{})
}

// collectMembers returns the members of t. inside holds the structs being inlined.
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

// inlinedStruct returns the embedded struct type of f if its fields are encoded as fields of the
// outer struct, and nil otherwise. byPointer reports whether f embeds a pointer to that type.
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
