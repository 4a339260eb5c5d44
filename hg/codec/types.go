package codec

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strconv"

	"github.com/vmihailenco/msgpack/v5"
)

// A TypeChecker is a Codec that tells by a type whether values of it would arrive. Msgpack and Raw are.
type TypeChecker interface {
	// CheckType returns why the codec does not encode values of t, or nothing of them, or does not decode them: an error that names the
	// field and its type, and matches ErrType.
	CheckType(t reflect.Type) error
}

var (
	_ TypeChecker = packer{}
	_ TypeChecker = raw{}
)

var (
	errorType   = reflect.TypeFor[error]()
	ownEncoders = slices.Concat(ownNesting, ownEncoding, ownDecoder)
)

// CheckType refuses what is not sent: chan, func, complex numbers, uintptr and unsafe pointers, structs that have fields and none that is
// exported, and two fields of one name; and what is not decoded: interfaces with methods other than error, and the tag option intern.
// Types with methods that encode or decode them are as good as these, and so is what a program has registered with the msgpack package.
func (packer) CheckType(t reflect.Type) error {
	w := typeWalk{seen: map[reflect.Type]bool{}}
	return w.check(t, t.String())
}

// A typeWalk looks at each type in a type once.
type typeWalk struct{ seen map[reflect.Type]bool }

func (w *typeWalk) check(t reflect.Type, at string) error {
	if w.seen[t] || t == errorType {
		return nil
	}
	w.seen[t] = true
	if implementsAny(t, ownEncoders) {
		return nil
	}
	refuse := func(why string) error {
		if registered(t) {
			return nil
		}
		return fmt.Errorf("codec: msgpack: %s is of type %v, %s: %w", at, t, why, ErrType)
	}
	switch t.Kind() {
	case reflect.Chan, reflect.Func, reflect.UnsafePointer, reflect.Uintptr, reflect.Complex64, reflect.Complex128:
		return refuse("which is not encoded; leave the field out with the tag msgpack:\"-\", or give the type MarshalBinary and UnmarshalBinary")
	case reflect.Interface:
		if t.NumMethod() > 0 {
			return refuse("an interface with methods, which is not decoded; use a type of its own, or any")
		}
	case reflect.Pointer, reflect.Slice:
		return w.check(t.Elem(), at)
	case reflect.Array:
		return w.check(t.Elem(), at+"["+strconv.Itoa(t.Len())+"]")
	case reflect.Map:
		if err := w.check(t.Key(), "a key of "+at); err != nil {
			return err
		}
		return w.check(t.Elem(), at)
	case reflect.Struct:
		sent, err := w.fields(t, at)
		if err == nil && t.NumField() > 0 && !sent {
			err = refuse("a struct of which no field is exported, so that nothing of it is sent")
		}
		return err
	}
	return nil
}

// fields looks at the fields of a struct, and reports whether something is sent of it, or left out on purpose.
func (w *typeWalk) fields(t reflect.Type, at string) (sent bool, err error) {
	names := map[string]string{}
	for i := range t.NumField() {
		f := t.Field(i)
		if !encoded(&f) {
			name, _ := parseTag(f.Tag.Get("msgpack"))
			sent = sent || name == "-"
			continue
		}
		name, options := parseTag(f.Tag.Get("msgpack"))
		if slices.Contains(options, "intern") {
			return false, fmt.Errorf("codec: msgpack: %s.%s has the tag option intern, which is not decoded: %w", at, f.Name, ErrType)
		}
		if f.Anonymous && f.Type.Kind() == reflect.Struct && !implementsAny(f.Type, ownEncoders) { // its fields are those of t
			some, err := w.fields(f.Type, at)
			if err != nil {
				return false, err
			}
			sent = sent || some
			continue
		}
		sent = true
		if name == "" {
			name = f.Name
		}
		if other, ok := names[name]; ok && !f.Anonymous {
			return false, fmt.Errorf("codec: msgpack: %s is of type %v, whose fields %s and %s have one name, %q, so that one of them is lost: %w", at, t, other, f.Name, name, ErrType)
		}
		names[name] = f.Name
		if err := w.check(f.Type, at+"."+f.Name); err != nil {
			return false, err
		}
	}
	return sent, nil
}

// registered reports whether the msgpack package was taught to encode t.
func registered(t reflect.Type) (yes bool) {
	defer func() { // there is no encoder for it
		if recover() != nil {
			yes = false
		}
	}()
	if t.Kind() == reflect.Interface {
		return false
	}
	b, err := msgpack.Marshal(reflect.New(t).Interface())
	return err == nil && string(b) != "\x80" // a struct without fields
}

// CheckType accepts what Raw encodes and decodes.
func (raw) CheckType(t reflect.Type) error {
	p := reflect.PointerTo(t)
	marshals := p.Implements(reflect.TypeFor[encoding.BinaryAppender]()) || p.Implements(reflect.TypeFor[encoding.BinaryMarshaler]())
	switch {
	case t == reflect.TypeFor[[]byte](), t == reflect.TypeFor[string]():
		return nil
	case marshals && p.Implements(reflect.TypeFor[encoding.BinaryUnmarshaler]()):
		return nil
	}
	return fmt.Errorf("codec: raw: %v is neither []byte nor string, and does not encode itself to binary: %w", t, ErrType)
}
