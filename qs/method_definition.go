package qs

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/vmihailenco/msgpack/v5"
)

// A method is what Methods and OneWays have in common.
type method struct {
	name    string
	o       options
	oneWay  bool
	streams []hg.StreamSpec // of items; nil for a plain method
	shape   string
	fields  []field // Sources and Sinks of the input
}

func define(name string, opts []Option, oneWay bool, in, out reflect.Type) *method {
	if name == "" || len(name) > 255 {
		panic(fmt.Sprintf("qs: the method name %q has %d bytes, want 1 to 255", name, len(name)))
	}
	o := optionsOf(name, opts)
	checkType(name, o, in)
	checkType(name, o, out)
	m := &method{name: name, o: o, oneWay: oneWay, fields: fieldsOf(name, in, o.codec), shape: shape(in)}
	if oneWay {
		if len(m.fields) > 0 {
			panic(fmt.Sprintf("qs: method %s is one-way: nobody would know how long its Sources and Sinks are needed; use Define", name))
		}
		return m
	}
	if len(fieldsOf(name, out, o.codec)) > 0 {
		panic(fmt.Sprintf("qs: method %s has a Source or a Sink in its output; put it into the input", name))
	}
	m.shape += " -> " + shape(out)
	return m
}

// checkType panics if the codec of a method does not send all of a type, which may be nil.
func checkType(name string, o options, t reflect.Type) {
	c := o.codec
	if c == nil {
		c = codec.Msgpack
	}
	checker, ok := c.(codec.TypeChecker)
	if !ok || t == nil {
		return
	}
	if err := checker.CheckType(t); err != nil {
		panic(fmt.Sprintf("qs: method %s cannot have this type: %v", name, err))
	}
}

// idOf returns the id of a method, which is made known to the class if it is not.
func (n *Node) idOf(m *method) (hg.ID, error) {
	if id, ok := n.known.Load(m); ok {
		return id.(hg.ID), nil
	}
	is := n.describe(m)
	n.mu.Lock()
	defer n.mu.Unlock()
	id := hg.HashName(m.name)
	was, ok := n.class.Registered(m.name)
	if ok && n.defined[m.name] == "" && len(m.fields) > 0 {
		return 0, &hg.Error{Op: "forward", RPC: m.name, Fate: NotRun, Err: hg.Errorf(ErrInvalid, "the program has registered %s with package hg, too: give it another name", was.Name)}
	}
	if err := n.define(m.name, is); err != nil {
		return 0, &hg.Error{Op: "forward", RPC: m.name, Fate: NotRun, Err: err}
	}
	if !ok {
		var err error
		if id, err = n.class.RegisterRPC(hg.RPC{Name: m.name, OneWay: m.oneWay, Codec: n.codecOf(m), Shape: m.shape}); err != nil {
			return 0, fmt.Errorf("qs: method %s: %w", m.name, err)
		}
	}
	n.known.Store(m, id)
	return id, nil
}

// define reports whether n has used another definition of a name, by which requests would be made otherwise. Locked.
func (n *Node) define(name, is string) error {
	switch was := n.defined[name]; was {
	case "":
		n.defined[name] = is
	case is:
	default:
		return hg.Errorf(ErrInvalid, "the program has two definitions of %s: this node has used %s, and now %s: give one of them another name", name, was, is)
	}
	return nil
}

// describe says in what definitions of one name have to agree.
func (n *Node) describe(m *method) string {
	kind := "a method"
	switch {
	case m.oneWay:
		kind = "a one-way method"
	case m.streams != nil:
		kind, _, _ = strings.Cut(kindOf(m.streams), " (")
	}
	c := n.resolveCodec(m)
	return fmt.Sprintf("%s in codec %s (%d)", kind, c.Name(), c.ID())
}

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
