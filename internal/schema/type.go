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
	Word string       // the text of a leaf: int8, time.Time, netip.Addr(binary); "" for a type that is made of others
	Name string       // of a struct that has one, with its package
	Len  int          // of an array

	Key, Elem *Type
	Fields    []Field  // of a struct, as it declares them; nil for a type that was parsed
	Members   []Member // of a struct, in the order in which they are encoded
	Aliases   []Alias  // of a struct
	Tuple     bool     // the struct is encoded as an array

	Encodes, Decodes Coding // a method of the type takes over from the encoder, from the decoder
}

// A Coding says by which methods a type encodes or decodes itself.
type Coding string

// The methods, in the order in which msgpack looks for them.
const (
	Own    Coding = "own" // of package msgpack: any value
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
	Name     string
	Type     *Type
	Optional bool // it may be left out, or nil for its type: omitempty, and fields of a struct that is embedded by pointer
}

// An Alias is a name that only the decoder knows.
type Alias struct {
	Name   string
	Type   *Type
	Member int // index in Members; -1 for an embedded struct, whose fields are members themselves
}

// CanBeMissing reports whether a reader sees that the member was not sent, or does not need it: it is a pointer or an interface, which is
// nil then, or its tag says omitempty.
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
	types    sync.Map   // reflect.Type → *Type, complete
	building sync.Mutex // one at a time completes types
	words    sync.Map   // reflect.Type → string, of NameLeaf

	timeType     = reflect.TypeFor[time.Time]()
	durationType = reflect.TypeFor[time.Duration]()
	anyType      = reflect.TypeFor[any]()
)

// NameLeaf gives a type that encodes itself a word of its own, and returns the type. It is called before Of sees the type.
func NameLeaf(t reflect.Type, word string) reflect.Type {
	words.Store(t, word)
	return t
}

// Of returns the Type of t. It is built once.
func Of(t reflect.Type) *Type {
	if known, ok := types.Load(t); ok {
		return known.(*Type)
	}
	building.Lock()
	defer building.Unlock()
	b := builder{}
	built := b.add(t)
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

// A builder holds the types that are being built, because types may contain themselves.
type builder map[reflect.Type]*Type

func (b builder) add(t reflect.Type) *Type {
	if known, ok := types.Load(t); ok {
		return known.(*Type)
	}
	if begun := b[t]; begun != nil {
		return begun
	}
	s := &Type{Go: t, Kind: t.Kind()}
	s.Encodes, s.Decodes = methodsOf(t)
	s.Word = leafWord(s)
	b[t] = s
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Chan:
		s.Elem = b.add(t.Elem())
	case reflect.Array:
		s.Elem, s.Len = b.add(t.Elem()), t.Len()
	case reflect.Map:
		s.Key, s.Elem = b.add(t.Key()), b.add(t.Elem())
	case reflect.Struct:
		if s.Word == "" {
			s.Name = nameOf(t)
		}
		for i := range t.NumField() {
			f := t.Field(i)
			tag, options := ParseTag(f.Tag.Get("msgpack"))
			s.Fields = append(s.Fields, Field{Name: f.Name, Tag: tag, Options: options, Exported: f.IsExported(), Embedded: f.Anonymous, Type: b.add(f.Type)})
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

var methods = []struct {
	encode, decode reflect.Type
	is             Coding
}{
	{reflect.TypeFor[msgpack.CustomEncoder](), reflect.TypeFor[msgpack.CustomDecoder](), Own},
	{reflect.TypeFor[msgpack.Marshaler](), reflect.TypeFor[msgpack.Unmarshaler](), Own},
	{reflect.TypeFor[encoding.BinaryMarshaler](), reflect.TypeFor[encoding.BinaryUnmarshaler](), Binary},
	{reflect.TypeFor[encoding.TextMarshaler](), reflect.TypeFor[encoding.TextUnmarshaler](), Text},
}

// methodsOf returns the methods by which t, or *t, encodes and decodes itself.
func methodsOf(t reflect.Type) (encodes, decodes Coding) {
	implements := func(i reflect.Type) bool { return t.Implements(i) || reflect.PointerTo(t).Implements(i) }
	for _, m := range slices.Backward(methods) {
		if implements(m.encode) {
			encodes = m.is
		}
		if implements(m.decode) {
			decodes = m.is
		}
	}
	return encodes, decodes
}

// leafWord returns the text of a type that is not described by what it is made of; "" for others.
func leafWord(s *Type) string {
	t := s.Go
	if word, ok := words.Load(t); ok {
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
		return nameOf(t)
	case reflect.Pointer:
		return ""
	}
	if m := s.Coding(); m != "" {
		name := nameOf(t)
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

// nameOf returns the name of a type with that of its package; "" if it has none. Type arguments are left out.
func nameOf(t reflect.Type) string {
	if t.Name() == "" {
		return ""
	}
	name, _, _ := strings.Cut(t.String(), "[")
	return name
}

// addMembers finds the fields of a struct on the wire by the rules of msgpack.
func (t *Type) addMembers() {
	t.Members, t.Aliases, t.Tuple = t.collect(map[*Type]bool{})
}

// collect returns the members of t; inside are the structs that are being inlined.
func (t *Type) collect(inside map[*Type]bool) (members []Member, aliases []Alias, tuple bool) {
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
		if inner, byPointer := f.inlined(); inner != nil && !inside[inner] {
			added, _, _ := inner.collect(inside)
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

// inlined returns the struct whose fields are those of the struct that f is in; nil if there is none.
func (f *Field) inlined() (inner *Type, byPointer bool) {
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
