package codec

import (
	"errors"
	"fmt"
	"reflect"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/internal/schema"
)

// Append has the same depth limit as Decode. Without a limit, a value that contains itself would
// crash the process, and a value nested too deeply would only be rejected by the target. Values of
// most types cannot be nested that deeply and need no check.

// maxSteps limits how many parts may contain one another, including pointers and interfaces, which
// add no bytes to the encoding.
const maxSteps = 4 * MaxDepth

var facts sync.Map // reflect.Type → *typeFacts

// typeFacts holds the properties of a type that Append and Decode need.
type typeFacts struct {
	deep bool  // values may be nested more than MaxDepth levels deep
	plan *plan // plan for the struct to which the type points, if there is one
}

// factsOf returns the typeFacts of t.
func factsOf(t reflect.Type) *typeFacts {
	if f, ok := facts.Load(t); ok {
		return f.(*typeFacts)
	}
	f := &typeFacts{deep: levels(schema.Of(t), map[*schema.Type]int{}) > MaxDepth}
	if !f.deep && t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct {
		f.plan = planFor(t.Elem())
	}
	facts.Store(t, f)
	return f
}

// deep reports whether values of type t may be nested more than MaxDepth levels deep.
func deep(t reflect.Type) bool { return factsOf(t).deep }

// levels returns how deeply values of type t may be nested, including pointers, or MaxDepth+1 if
// there is no limit. seen contains the types whose levels are known or are being computed; a type
// that is reached again while it is being computed is recursive.
func levels(t *schema.Type, seen map[*schema.Type]int) (n int) {
	if n, ok := seen[t]; ok {
		return n
	}
	seen[t] = MaxDepth + 1
	defer func() { seen[t] = n }()
	switch {
	case t.Kind == reflect.Interface, t.Encodes == schema.Own:
		return MaxDepth + 1
	case t.Encodes != "": // one value
		return 0
	}
	switch t.Kind {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		n = 1 + levels(t.Elem, seen)
	case reflect.Map:
		n = 1 + max(levels(t.Elem, seen), levels(t.Key, seen))
	case reflect.Struct:
		for i := range t.Fields {
			if f := &t.Fields[i]; f.Sent() {
				n = max(n, levels(f.Type, seen))
			}
		}
		n++
	}
	return min(n, MaxDepth+1)
}

// A walk visits the parts of a value to find one that is nested too deeply. A value without cycles
// may have exponentially many paths to its leaves. After visiting many parts, a walk therefore
// visits a part to which several others point only once per depth.
type walk struct {
	parts int
	fit   map[shared]int // number of remaining levels with which each part was found not to be too deep
}

// A shared identifies a part of a value to which several others may point, together with the number
// of steps that remained when it was visited.
type shared struct {
	t     reflect.Type
	at    uintptr
	len   int
	steps int
}

// A room holds the remaining depth. steps limits how many parts may contain one another, including
// pointers and interfaces. levels limits how many containers may be nested in the encoding.
type room struct{ steps, levels int }

// fewParts is the number of parts that a walk visits before it begins to remember them.
const fewParts = 1 << 12

// tooDeep returns nil if v is not nested more deeply than Append accepts. Otherwise it returns the
// type of the part of v at which the limit is exceeded. It returns nil for types with their own
// encoders, whose encoding checkDeep checks.
func tooDeep(v reflect.Value) reflect.Type {
	var w walk
	return w.tooDeep(v, room{maxSteps, MaxDepth})
}

func (w *walk) tooDeep(v reflect.Value, left room) reflect.Type {
	if !v.IsValid() || !deep(v.Type()) {
		return nil
	}
	t := v.Type()
	if left.steps == 0 {
		return t
	}
	if t.Kind() != reflect.Interface && schema.Of(t).Encodes != "" {
		return nil // checkDeep checks the encoding of such values
	}
	switch t.Kind() {
	case reflect.Map, reflect.Slice:
		if v.Len() == 0 {
			return nil // may be omitted
		}
		fallthrough
	case reflect.Array, reflect.Struct:
		if left.levels == 0 {
			return t
		}
	}
	s := shared{t: t, steps: left.steps}
	switch t.Kind() {
	case reflect.Slice:
		s.len = v.Len()
		fallthrough
	case reflect.Pointer, reflect.Map:
		s.at = v.Pointer()
	}
	if levels, ok := w.fit[s]; ok && left.levels >= levels {
		return nil
	}
	if at := w.inside(v, left); at != nil {
		return at
	}
	if w.parts++; w.parts > fewParts && s.at != 0 {
		if w.fit == nil {
			w.fit = map[shared]int{}
		}
		w.fit[s] = left.levels
	}
	return nil
}

// inside calls tooDeep for the parts of v and returns the first result that is not nil.
func (w *walk) inside(v reflect.Value, left room) reflect.Type {
	left.steps--
	t := v.Type()
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface:
		return w.tooDeep(v.Elem(), left)
	case reflect.Slice, reflect.Array:
		left.levels--
		for i := range v.Len() {
			if at := w.tooDeep(v.Index(i), left); at != nil {
				return at
			}
		}
	case reflect.Map:
		left.levels--
		for it := v.MapRange(); it.Next(); {
			if at := w.tooDeep(it.Key(), left); at != nil {
				return at
			}
			if at := w.tooDeep(it.Value(), left); at != nil {
				return at
			}
		}
	case reflect.Struct:
		for i, f := range schema.Of(t).Fields {
			if f.Sent() {
				in := left
				if in.levels--; f.Embedded { // its fields belong to the outer struct
					in.levels++
				}
				if v.Field(i).IsZero() { // may be omitted
					continue
				}
				if at := w.tooDeep(v.Field(i), in); at != nil {
					return at
				}
			}
		}
	}
	return nil
}

// errDeep returns the error for a value v that is nested too deeply. at is the type of the part at
// which the limit is exceeded, or nil if it is not known.
func errDeep(v any, at reflect.Type) error {
	in := ""
	if at != nil {
		in = fmt.Sprintf(" or cyclic, at %v", at)
	}
	return fmt.Errorf("codec: encode %T: nested more than %d levels deep%s: %w", v, MaxDepth, in, ErrDepth)
}

// checkDeep returns an error if b, the encoding of v, is nested more deeply than the decoder
// accepts.
func checkDeep(b []byte, v any) error {
	if _, err := check(b, MaxDepth); errors.Is(err, ErrDepth) {
		return errDeep(v, nil)
	}
	return nil
}
