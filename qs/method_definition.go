package qs

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/internal/errtext"
	"github.com/quicksilver-rpc/quicksilver/internal/schema"
)

// A method holds the fields that Method, Stream, Upload, Duplex and OneWay have in common.
type method struct {
	name      string
	o         options
	oneWay    bool
	streams   []hg.StreamSpec // item streams; nil for a plain method
	signature schema.Signature
	shape     string  // text form of signature
	fields    []field // Sources and Sinks in the input
}

// defineMethod returns a method of the given kind and types. It panics if a type cannot be sent.
func defineMethod(name string, opts []Option, kind schema.Kind, in, up, out reflect.Type) *method {
	if name == "" || len(name) > 255 {
		panic(fmt.Sprintf("qs: the method name %q has %d bytes, want 1 to 255", name, len(name)))
	}
	m := &method{name: name, o: optionsOf(name, opts), oneWay: kind == schema.OneWay}
	of := func(t reflect.Type) *schema.Type {
		if t == nil {
			return nil
		}
		checkType(name, m.o, t)
		return schema.Of(t)
	}
	m.signature = schema.Signature{Kind: kind, In: of(in), Up: of(up), Out: of(out)}
	m.shape = m.signature.String()
	m.fields = fieldsOf(name, m.signature.In, m.o.codec)
	refuse := func(t *schema.Type, where string) {
		if t != nil && len(fieldsOf(name, t, m.o.codec)) > 0 {
			panic(fmt.Sprintf("qs: method %s has a Source or Sink in its %s, want it in the input",
				name, where))
		}
	}
	refuse(m.signature.Up, "items")
	refuse(m.signature.Out, "output")
	if m.oneWay && len(m.fields) > 0 {
		panic(fmt.Sprintf("qs: one-way method %s has Sources or Sinks; use Define",
			name))
	}
	return m
}

// checkType panics if the method's codec does not send all of type t.
func checkType(name string, o options, t reflect.Type) {
	c := o.codec
	if c == nil {
		c = codec.Msgpack
	}
	checker, ok := c.(codec.TypeChecker)
	if !ok {
		return
	}
	if err := checker.CheckType(t); err != nil {
		panic(fmt.Sprintf("qs: method %s cannot have this type: %v", name, err))
	}
}

// idOf returns the ID of m. On first use, it registers m with the class.
func (n *Node) idOf(m *method) (hg.ID, error) {
	if id, ok := n.known.Load(m); ok {
		return id.(hg.ID), nil
	}
	is := n.describeDefinition(m)
	n.mu.Lock()
	defer n.mu.Unlock()
	id := hg.HashName(m.name)
	was, ok := n.class.Registered(m.name)
	if ok && n.defined[m.name] == "" {
		return 0, &hg.Error{Op: "forward", RPC: m.name, Fate: NotRun,
			Err: hg.Errorf(ErrInvalid,
				"%s is also registered with package hg; use another name", was.Name)}
	}
	if err := n.useDefinitionLocked(m.name, is); err != nil {
		return 0, &hg.Error{Op: "forward", RPC: m.name, Fate: NotRun, Err: err}
	}
	if !ok {
		var err error
		if id, err = n.class.RegisterRPC(hg.RPC{Name: m.name, OneWay: m.oneWay, Codec: n.codecOf(m),
			Shape: m.shape}); err != nil {
			return 0, errtext.Wrap("qs: method "+m.name, err)
		}
	}
	n.known.Store(m, id)
	return id, nil
}

// useDefinitionLocked records is as the description of the method called name. It fails if a
// different description has been recorded under that name. n.mu must be held.
func (n *Node) useDefinitionLocked(name, is string) error {
	switch was := n.defined[name]; was {
	case "":
		n.defined[name] = is
	case is:
	default:
		return hg.Errorf(ErrInvalid, "%s is defined twice, as %s and as %s",
			name, was, is)
	}
	return nil
}

// describeDefinition returns a text with the properties of m, its kind and codec, that must be the
// same for all methods of its name.
func (n *Node) describeDefinition(m *method) string {
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

// A field is the position of a Source or a Sink in an input.
type field struct {
	path []int // field indices that lead from the input to the Source or Sink
	sink bool
	name string
}

var (
	sourceType = schema.NameLeaf(reflect.TypeFor[Source](), "Source")
	sinkType   = schema.NameLeaf(reflect.TypeFor[Sink](), "Sink")
)

// maxFields is the maximum number of Sources and Sinks in an input.
const maxFields = 64

// fieldsOf returns the Sources and Sinks in t, which is the input, item or output type of the given
// method. It panics if codec c would not send one of them.
func fieldsOf(method string, t *schema.Type, c codec.Codec) []field {
	w := typeWalk{method: method, tags: c == nil || c.ID() == codec.MsgpackID,
		seen: map[*schema.Type]bool{}}
	w.visitType(t, nil, "", true)
	if len(w.found) > maxFields {
		panic(fmt.Sprintf("qs: method %s has %d Sources and Sinks in its input, want at most %d", method,
			len(w.found), maxFields))
	}
	return w.found
}

// A typeWalk finds the Sources and Sinks in a type.
type typeWalk struct {
	method string
	tags   bool                  // msgpack tags apply
	seen   map[*schema.Type]bool // types visited through pointers, slices and the like, to stop recursion
	found  []field
}

// visitType finds the Sources and Sinks in type t. If direct is set, t is the type of the field at
// path, called name, and only structs contain that field. Otherwise name describes where t is used,
// and visitType panics if t contains a Source or Sink.
func (w *typeWalk) visitType(t *schema.Type, path []int, name string, direct bool) {
	if t.Go == sourceType || t.Go == sinkType {
		if !direct {
			panic(fmt.Sprintf("qs: method %s has a %v in %s, want it in an exported field of a struct",
				w.method, t.Go, name))
		}
		w.found = append(w.found, field{append([]int(nil), path...), t.Go == sinkType, name})
		return
	}
	switch t.Kind {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map, reflect.Chan:
		if w.seen[t] {
			return
		}
		w.seen[t] = true
		if t.Kind == reflect.Map {
			w.visitType(t.Key, nil, "a map", false)
		}
		w.visitType(t.Elem, nil, "a "+t.Kind.String(), false)
	case reflect.Struct:
		if !direct && w.seen[t] {
			return
		}
		w.seen[t] = w.seen[t] || !direct
		for i := range t.Fields {
			w.visitField(t, &t.Fields[i], append(path, i), name, direct)
		}
	}
}

// visitField visits field f of t. in is the name of the field that contains f, or "" for a field of
// the input itself.
func (w *typeWalk) visitField(t *schema.Type, f *schema.Field, path []int, in string, direct bool) {
	name := f.Name
	if in != "" {
		name = in + "." + name
	}
	switch {
	case !direct:
		w.visitType(f.Type, nil, in, false)
	case !f.Exported && (!f.Embedded || f.Type.Kind != reflect.Struct):
		w.visitType(f.Type, nil, "the unexported field "+name, false)
	case f.Embedded && (f.Type.Go == sourceType || f.Type.Go == sinkType):
		panic(fmt.Sprintf("qs: method %s has a %v embedded in %v, want a named field",
			w.method, f.Type.Go, t.Go))
	case w.tags && f.Tag == "-" && t.Coding() == "":
		w.visitType(f.Type, nil, "the field "+name+" (omitted by its tag)", false)
	default:
		w.visitType(f.Type, path, name, true)
	}
}
