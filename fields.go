package quicksilver

import (
	"fmt"
	"reflect"
	"strings"
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

// shape describes a type for people, and for programs that call methods without it.
func shape(t reflect.Type) string { return shapeIn(t, 0) }

// maxShape is how deep a description goes.
const maxShape = 4

func shapeIn(t reflect.Type, depth int) string {
	switch {
	case t == sourceType:
		return "Source"
	case t == sinkType:
		return "Sink"
	case t.PkgPath() != "" && t.Kind() != reflect.Struct, depth >= maxShape, t.PkgPath() == "time":
		return t.String()
	}
	switch t.Kind() {
	case reflect.Slice:
		return "[]" + shapeIn(t.Elem(), depth+1)
	case reflect.Map:
		return "map[" + shapeIn(t.Key(), depth+1) + "]" + shapeIn(t.Elem(), depth+1)
	case reflect.Pointer:
		return "*" + shapeIn(t.Elem(), depth+1)
	case reflect.Struct:
		var fields []string
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() {
				fields = append(fields, f.Name+" "+shapeIn(f.Type, depth+1))
			}
		}
		return "{" + strings.Join(fields, ", ") + "}"
	}
	return t.String()
}
