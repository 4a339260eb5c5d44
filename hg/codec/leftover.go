package codec

import (
	"encoding"
	"reflect"
	"sync"

	"github.com/vmihailenco/msgpack/v5"
)

// The decoder mishandles two kinds of values that a destination may hold from earlier use. It
// leaves a []string unchanged if the message contains nil for it. It decodes into the value held by
// an interface, and panics if that value is not a pointer. dropLeftovers clears both.

// maxLeftoverDepth is the number of pointers that dropLeftovers follows before it clears the next
// one.
const maxLeftoverDepth = 4

var (
	leftovers sync.Map // reflect.Type → result of hasLeftovers

	decoderTypes = []reflect.Type{reflect.TypeFor[msgpack.CustomDecoder](),
		reflect.TypeFor[msgpack.Unmarshaler](), reflect.TypeFor[encoding.BinaryUnmarshaler](),
		reflect.TypeFor[encoding.TextUnmarshaler]()}
)

// dropLeftovers clears the leftovers in the value that v points to.
func dropLeftovers(v any) {
	to := reflect.ValueOf(v)
	if to.Kind() != reflect.Pointer || to.IsNil() {
		return
	}
	t := to.Type().Elem()
	has, ok := leftovers.Load(t)
	if !ok {
		has, _ = leftovers.LoadOrStore(t, hasLeftovers(t, map[reflect.Type]bool{}))
	}
	if has.(bool) {
		clearLeftovers(to.Elem(), 0)
	}
}

// hasLeftovers reports whether a value of type t may contain leftovers.
func hasLeftovers(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] || decodesItself(t) {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Interface:
		return true
	case reflect.Slice:
		return t.Elem().Kind() == reflect.String || hasLeftovers(t.Elem(), seen)
	case reflect.Array, reflect.Pointer:
		return hasLeftovers(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if hasLeftovers(t.Field(i).Type, seen) {
				return true
			}
		}
	}
	return false
}

// decodesItself reports whether a method of *t decodes values of type t.
func decodesItself(t reflect.Type) bool {
	for _, d := range decoderTypes {
		if t.Kind() != reflect.Interface && reflect.PointerTo(t).Implements(d) {
			return true
		}
	}
	return false
}

// clearLeftovers clears the leftovers in v, which was reached through depth pointers.
func clearLeftovers(v reflect.Value, depth int) {
	if !v.CanSet() || v.IsZero() || decodesItself(v.Type()) {
		return
	}
	switch v.Kind() {
	case reflect.Interface:
		if v.Elem().Kind() != reflect.Pointer {
			v.SetZero()
		}
	case reflect.Slice: // elements are decoded into existing elements
		if hasLeftovers(v.Type(), map[reflect.Type]bool{}) {
			v.SetZero()
		}
	case reflect.Array:
		for i := range v.Len() {
			clearLeftovers(v.Index(i), depth)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			clearLeftovers(v.Field(i), depth)
		}
	case reflect.Pointer:
		if depth == maxLeftoverDepth {
			v.SetZero()
			return
		}
		clearLeftovers(v.Elem(), depth+1)
	}
}
