package qs

import (
	"encoding"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

// maxShape is how long a description may get: what comes after that many bytes is named, not described.
const maxShape = 4 << 10

// shape describes a type as it is on the wire, for people, and for programs that call methods without it:
//
//	{Name string, Body Source, Sizes map[string]int64, At time.Time}
//
// A struct has the names that msgpack gives its fields. A type of another kind is what it is made of, but for a few that are known by
// name. One that encodes itself is its name and how: slog.Level(text), netip.Addr(binary), kv.Set(own). One that contains itself is its
// name, inside.
func shape(t reflect.Type) string {
	s := shaper{inside: map[reflect.Type]bool{}}
	s.add(t)
	return s.String()
}

type shaper struct {
	strings.Builder
	inside map[reflect.Type]bool // what is being described
}

var (
	timeType     = reflect.TypeFor[time.Time]()
	durationType = reflect.TypeFor[time.Duration]()
)

var encodings = []struct {
	encode, decode reflect.Type
	name           string
}{ // in the order in which msgpack looks for them
	{reflect.TypeFor[msgpack.CustomEncoder](), reflect.TypeFor[msgpack.CustomDecoder](), "(own)"},
	{reflect.TypeFor[msgpack.Marshaler](), reflect.TypeFor[msgpack.Unmarshaler](), "(own)"},
	{reflect.TypeFor[encoding.BinaryMarshaler](), reflect.TypeFor[encoding.BinaryUnmarshaler](), "(binary)"},
	{reflect.TypeFor[encoding.TextMarshaler](), reflect.TypeFor[encoding.TextUnmarshaler](), "(text)"},
}

// encodesItself says how a type encodes itself; "" if it does not.
func encodesItself(t reflect.Type) string {
	for _, e := range encodings {
		for _, t := range []reflect.Type{t, reflect.PointerTo(t)} {
			if t.Implements(e.encode) || t.Implements(e.decode) {
				return e.name
			}
		}
	}
	return ""
}

func (s *shaper) add(t reflect.Type) {
	switch {
	case t == sourceType:
		s.WriteString("Source")
		return
	case t == sinkType:
		s.WriteString("Sink")
		return
	case t == timeType, t == durationType, s.inside[t], s.Len() > maxShape:
		s.WriteString(name(t))
		return
	}
	if t.Kind() != reflect.Pointer && t.Kind() != reflect.Interface {
		if how := encodesItself(t); how != "" {
			s.WriteString(name(t) + how)
			return
		}
	}
	if t.Name() != "" {
		s.inside[t] = true
		defer delete(s.inside, t)
	}
	switch t.Kind() {
	case reflect.Slice:
		s.WriteString("[]")
		s.add(t.Elem())
	case reflect.Array:
		text, _, _ := strings.Cut(reflect.ArrayOf(t.Len(), reflect.TypeFor[bool]()).String(), "b")
		s.WriteString(text)
		s.add(t.Elem())
	case reflect.Map:
		s.WriteString("map[")
		s.add(t.Key())
		s.WriteString("]")
		s.add(t.Elem())
	case reflect.Pointer:
		s.WriteString("*")
		s.add(t.Elem())
	case reflect.Struct:
		s.WriteString("{")
		for i, f := range wireFields(t) {
			if i > 0 {
				s.WriteString(", ")
			}
			s.WriteString(f.name + " ")
			s.add(f.typ)
		}
		s.WriteString("}")
	case reflect.Interface:
		s.WriteString(name(t))
	default:
		s.WriteString(t.Kind().String())
	}
}

// name is what a type is called; the name of one that has none would be a description.
func name(t reflect.Type) string {
	if t.Name() == "" || t == reflect.TypeFor[any]() {
		return "any"
	}
	return t.String()
}

type wireField struct {
	name string
	typ  reflect.Type
}

// wireFields returns the fields of a struct, with those of structs that it embeds, as msgpack has them.
func wireFields(t reflect.Type) (all []wireField) {
	has := func(name string) bool {
		return slices.ContainsFunc(all, func(f wireField) bool { return f.name == name })
	}
	for i := range t.NumField() {
		f := t.Field(i)
		tag := strings.Split(f.Tag.Get("msgpack"), ",")
		if tag[0] == "-" || !f.IsExported() && !f.Anonymous {
			continue
		}
		if inner := embedded(f, tag[1:]); inner != nil {
			fs := wireFields(inner)
			insists := slices.Contains(tag[1:], "inline")
			if insists || !slices.ContainsFunc(fs, func(f wireField) bool { return has(f.name) }) {
				for _, f := range fs {
					if !has(f.name) {
						all = append(all, f)
					}
				}
				continue
			}
		}
		name := tag[0]
		if name == "" {
			name = f.Name
		}
		if i := slices.IndexFunc(all, func(f wireField) bool { return f.name == name }); i >= 0 {
			all[i].typ = f.Type // hides that of an embedded struct
			continue
		}
		all = append(all, wireField{name, f.Type})
	}
	return all
}

// embedded returns the struct whose fields are those of the struct that f is in; or nil.
func embedded(f reflect.StructField, options []string) reflect.Type {
	t := f.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if !f.Anonymous || slices.Contains(options, "noinline") || t.Kind() != reflect.Struct || encodesItself(t) != "" {
		return nil
	}
	return t
}
