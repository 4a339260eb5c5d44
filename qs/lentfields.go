package qs

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
)

// A field is where a Source or a Sink is in an input.
type field struct {
	path []int
	sink bool
	name string
}

var (
	sourceType = reflect.TypeFor[Source]()
	sinkType   = reflect.TypeFor[Sink]()
)

// maxFields bounds the Sources and Sinks of an input.
const maxFields = 64

// fieldsOf finds the Sources and Sinks of a type that a codec encodes. It panics when one is where it would not be sent.
func fieldsOf(method string, t reflect.Type, c codec.Codec) []field {
	w := walk{method: method, tags: c == nil || c.ID() == codec.MsgpackID, seen: map[reflect.Type]bool{}}
	w.at(t, nil, "", true)
	if len(w.found) > maxFields {
		panic(fmt.Sprintf("qs: method %s has %d Sources and Sinks in its input, there may be %d", method, len(w.found), maxFields))
	}
	return w.found
}

type walk struct {
	method string
	tags   bool                  // those of msgpack count
	seen   map[reflect.Type]bool // that are pointed to
	found  []field
}

// at looks at t, to which path leads, and name; direct says whether through structs only, else name says where it is.
func (w *walk) at(t reflect.Type, path []int, name string, direct bool) {
	if t == nil {
		return
	}
	if t == sourceType || t == sinkType {
		if !direct {
			panic(fmt.Sprintf("qs: method %s has a %v in %s, where Call cannot find it: put it into a field of a struct",
				w.method, t, name))
		}
		w.found = append(w.found, field{append([]int(nil), path...), t == sinkType, name})
		return
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map, reflect.Chan:
		if w.seen[t] {
			return
		}
		w.seen[t] = true
		if t.Kind() == reflect.Map {
			w.at(t.Key(), nil, "a map", false)
		}
		w.at(t.Elem(), nil, "a "+t.Kind().String(), false)
	case reflect.Struct:
		if !direct && w.seen[t] {
			return
		}
		w.seen[t] = w.seen[t] || !direct
		for i := range t.NumField() {
			f := t.Field(i)
			w.field(t, &f, append(path, i), name, direct)
		}
	}
}

// field looks at a field of t, which is called in.
func (w *walk) field(t reflect.Type, f *reflect.StructField, path []int, in string, direct bool) {
	name := f.Name
	if in != "" {
		name = in + "." + name
	}
	tag, _, _ := strings.Cut(f.Tag.Get("msgpack"), ",")
	switch {
	case !direct:
		w.at(f.Type, nil, in, false)
	case !f.IsExported() && (!f.Anonymous || f.Type.Kind() != reflect.Struct):
		w.at(f.Type, nil, "the unexported field "+name, false)
	case f.Anonymous && (f.Type == sourceType || f.Type == sinkType):
		panic(fmt.Sprintf("qs: method %s has a %v that %v embeds, whose methods would encode all of it as that: give the field a name", w.method, f.Type, t))
	case w.tags && strings.TrimSpace(tag) == "-" && encodesItself(t) == "":
		w.at(f.Type, nil, "the field "+name+", which its tag leaves out", false)
	default:
		w.at(f.Type, path, name, true)
	}
}
