package quicksilver

import (
	"fmt"
	"reflect"
)

// A field is where a Source or a Sink is in an input.
type field struct {
	path []int
	sink bool
}

var (
	sourceType = reflect.TypeFor[Source]()
	sinkType   = reflect.TypeFor[Sink]()
)

// maxFields bounds the Sources and Sinks of an input.
const maxFields = 64

// fieldsOf finds the Sources and Sinks of a type. It panics when one is where Call cannot find it.
func fieldsOf(name string, t reflect.Type) []field {
	w := walk{name: name, seen: map[reflect.Type]bool{}}
	w.at(t, nil, "", true)
	if len(w.found) > maxFields {
		panic(fmt.Sprintf("quicksilver: method %s has %d Sources and Sinks in its input, there may be %d", name, len(w.found), maxFields))
	}
	return w.found
}

type walk struct {
	name  string
	seen  map[reflect.Type]bool // that are pointed to
	found []field
}

// at looks at t, to which path leads; direct says whether through structs only.
func (w *walk) at(t reflect.Type, path []int, text string, direct bool) {
	if t == nil {
		return
	}
	if t == sourceType || t == sinkType {
		if !direct {
			panic(fmt.Sprintf("quicksilver: method %s has a %v in %s, where Call cannot find it: put it into a field of a struct",
				w.name, t, text))
		}
		w.found = append(w.found, field{append([]int(nil), path...), t == sinkType})
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
			inner := text
			if direct && !f.IsExported() && (!f.Anonymous || f.Type.Kind() != reflect.Struct) {
				w.at(f.Type, nil, "the unexported field "+f.Name, false)
				continue
			}
			w.at(f.Type, append(path, i), inner, direct)
		}
	}
}
