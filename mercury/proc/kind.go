package proc

import (
	"fmt"
	"reflect"
	"sync"
)

var (
	kinds    sync.Map // maps reflect.Type to *kind
	appender = reflect.TypeFor[Appender]()
	reader   = reflect.TypeFor[Reader]()
)

// kindOf returns the kind that describes the encoding of t.
func kindOf(t reflect.Type) (*kind, error) {
	if k, ok := kinds.Load(t); ok {
		return k.(*kind), nil
	}
	tag := ""
	if t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8 {
		tag = "rest"
	}
	k, err := newKind(t, tag, true, nil)
	if err != nil {
		return nil, err
	}
	kinds.Store(t, k)
	return k, nil
}

// newKind returns a kind for t. tag is the proc tag of the field of type t. last reports whether t is at the end of the
// encoding, and within lists the types that contain t.
func newKind(t reflect.Type, tag string, last bool, within []reflect.Type) (*kind, error) {
	k := &kind{t: t}
	if p := reflect.PointerTo(t); p.Implements(appender) && p.Implements(reader) {
		k.custom, k.minSize = true, 1
		return k, nil
	}
	for _, w := range within {
		if w == t {
			return nil, fmt.Errorf("proc: recursive type %s", t)
		}
	}
	within = append(within, t)
	if tag != "" && t.Kind() != reflect.Slice {
		return nil, fmt.Errorf("proc: tag %q on a %s, want a slice", tag, t)
	}
	switch t.Kind() {
	case reflect.Bool, reflect.Int8, reflect.Uint8, reflect.Int16, reflect.Uint16, reflect.Int32, reflect.Uint32, reflect.Int64, reflect.Uint64,
		reflect.Float32, reflect.Float64:
		k.size = int(t.Size())
		k.minSize = k.size
	case reflect.String:
		k.minSize = 8
	case reflect.Pointer:
		if t.Elem().Kind() != reflect.String {
			return nil, fmt.Errorf("proc: unsupported pointer type %s, want *string", t)
		}
		k.minSize = 8
	case reflect.Int, reflect.Uint, reflect.Uintptr:
		return nil, fmt.Errorf("proc: %s has no fixed width, want %s32 or %[2]s64", t, map[bool]string{true: "int", false: "uint"}[t.Kind() == reflect.Int])
	case reflect.Struct:
		return k, k.addFields(last, within)
	case reflect.Array:
		var err error
		if k.elem, err = newKind(t.Elem(), "", last && t.Len() == 1, within); err != nil {
			return nil, err
		}
		if k.elem.minSize == 0 || t.Len() > 1<<24 {
			return nil, fmt.Errorf("proc: %s has empty elements or too many", t)
		}
		k.minSize = t.Len() * k.elem.minSize
	case reflect.Slice:
		return k, k.addItems(tag, last, within)
	default:
		return nil, fmt.Errorf("proc: unsupported type %s", t)
	}
	return k, nil
}

// addFields sets the fields of a struct kind.
func (k *kind) addFields(last bool, within []reflect.Type) error {
	n := k.t.NumField()
	for i := range n {
		f := k.t.Field(i)
		if !f.IsExported() {
			if f.Name == "_" {
				continue
			}
			return fmt.Errorf("proc: field %s of %s is not exported", f.Name, k.t)
		}
		fk, err := newKind(f.Type, f.Tag.Get("proc"), last && i == n-1, within)
		if err != nil {
			return fmt.Errorf("%w, in field %s", err, f.Name)
		}
		k.fields = append(k.fields, field{i, f.Name, fk})
		k.minSize += fk.minSize
	}
	return nil
}

// addItems sets the count width and element kind of a slice kind.
func (k *kind) addItems(tag string, last bool, within []reflect.Type) error {
	widths := map[string]int{"u8": 1, "u16": 2, "u32": 4, "u64": 8, "rest": 0}
	width, ok := widths[tag]
	switch {
	case !ok:
		return fmt.Errorf("proc: %s has no tag with the width of its count, such as `proc:\"u32\"`", k.t)
	case tag == "rest" && (!last || k.t.Elem().Kind() != reflect.Uint8):
		return fmt.Errorf("proc: tag `proc:\"rest\"` on a field that is not the last or not []byte")
	}
	elem, err := newKind(k.t.Elem(), "", false, within)
	if err != nil {
		return err
	}
	if elem.minSize == 0 {
		return fmt.Errorf("proc: %s has empty elements", k.t)
	}
	k.elem, k.countSize, k.minSize = elem, width, width
	return nil
}
