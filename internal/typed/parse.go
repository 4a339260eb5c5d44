package typed

import (
	"fmt"
	"math/big"
	"net/netip"
	"reflect"
	"strings"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/schema"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// named are the types that a shape names.
var named = map[string]reflect.Type{
	"bool": reflect.TypeFor[bool](), "string": reflect.TypeFor[string](),
	"int": reflect.TypeFor[int64](), "int8": reflect.TypeFor[int8](), "int16": reflect.TypeFor[int16](), "int32": reflect.TypeFor[int32](), "int64": reflect.TypeFor[int64](),
	"uint": reflect.TypeFor[uint64](), "uint8": reflect.TypeFor[uint8](), "uint16": reflect.TypeFor[uint16](), "uint32": reflect.TypeFor[uint32](), "uint64": reflect.TypeFor[uint64](),
	"float32": reflect.TypeFor[float32Value](), "float64": reflect.TypeFor[floatValue](),
	"time.Time": reflect.TypeFor[time.Time](), "time.Duration": reflect.TypeFor[duration](),
	"big.Int(text)":      reflect.TypeFor[big.Int](),
	"netip.Addr(binary)": reflect.TypeFor[netip.Addr](), "netip.AddrPort(binary)": reflect.TypeFor[netip.AddrPort](), "netip.Prefix(binary)": reflect.TypeFor[netip.Prefix](),
	"url.URL(binary)": reflect.TypeFor[text](),
	"Source":          sourceType, "Sink": sinkType,
}

var (
	sourceType = reflect.TypeFor[qs.Source]()
	sinkType   = reflect.TypeFor[qs.Sink]()
	freeType   = reflect.TypeFor[Free]()
	textType   = reflect.TypeFor[text]()
)

// A Method is the types of a method. The zero value is one of which nothing is known.
type Method struct {
	In, Out reflect.Type // Free where nothing is known
	Known   bool
}

// Unknown is a method of which nothing is known.
var Unknown = Method{In: freeType, Out: freeType}

// Parse reads the shape of a method.
func Parse(shape string) (Method, error) {
	s, err := schema.ParseSignature(shape)
	if err != nil {
		return Unknown, err
	}
	b := builder{inside: map[*schema.Type]bool{}}
	m := Method{In: b.build(s.In), Out: freeType, Known: true}
	if s.Out != nil {
		m.Out = b.build(s.Out)
	}
	if b.bad {
		return Unknown, fmt.Errorf("%q has a field whose name no struct tag can have", shape)
	}
	return m, nil
}

// A builder makes Go types.
type builder struct {
	inside map[*schema.Type]bool // types that are being made: one that contains itself is Free there
	bad    bool
}

func (b *builder) build(t *schema.Type) reflect.Type {
	if b.inside[t] {
		return freeType
	}
	b.inside[t] = true
	defer delete(b.inside, t)
	switch {
	case t.Word != "":
		if known, ok := named[t.Word]; ok {
			return known
		}
		if strings.HasSuffix(t.Word, "(text)") {
			return textType
		}
		return freeType
	case t.Kind == reflect.Pointer:
		return reflect.PointerTo(b.build(t.Elem))
	case t.Kind == reflect.Slice, t.Kind == reflect.Array: // the wire does not tell them apart
		return reflect.SliceOf(b.build(t.Elem))
	case t.Kind == reflect.Map:
		key, elem := b.build(t.Key), b.build(t.Elem)
		if !keyed(key) {
			return freeType
		}
		return reflect.MapOf(key, elem)
	}
	return b.record(t)
}

// keyed reports whether a JSON object can have such names.
func keyed(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.String:
		return true
	case reflect.Int64, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Uint64, reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return t != named["time.Duration"]
	}
	return false
}

// record makes a struct. Its fields are sent only if they are given: the zero value of some types cannot be.
func (b *builder) record(s *schema.Type) reflect.Type {
	var fields []reflect.StructField
	for i, m := range s.Members {
		b.bad = b.bad || strings.ContainsAny(m.Name, "`\"\\,")
		t := b.build(m.Type)
		omit := ",omitempty"
		if t.Kind() == reflect.Struct && t.PkgPath() != "" && t != freeType && t != textType && t != named["time.Time"] {
			omit = "" // what it holds cannot be seen
		}
		fields = append(fields, reflect.StructField{Name: fmt.Sprint("F", i), Type: t,
			Tag: reflect.StructTag(fmt.Sprintf("msgpack:%q json:%q", m.Name+omit, m.Name))})
	}
	return reflect.StructOf(fields)
}

// nameOf returns the name of a field of a record.
func nameOf(f reflect.StructField) string { return f.Tag.Get("json") }

// A Field is a Source or a Sink of an input.
type Field struct {
	Name string // as in JSON, with dots
	Path []int
}

// Sources and Sinks return the fields of an input that files can be lent in, in the order of the method.
func (m Method) Sources() []Field { return m.fields(sourceType) }

// Sinks are as Sources.
func (m Method) Sinks() []Field { return m.fields(sinkType) }

// fields returns those of one type, also those in structs in the input.
func (m Method) fields(of reflect.Type) []Field { return fieldsOf(m.In, of, Field{}) }

func fieldsOf(t, of reflect.Type, at Field) (all []Field) {
	switch {
	case t == of:
		return []Field{at}
	case t.Kind() != reflect.Struct || t.PkgPath() != "":
		return nil
	}
	for i := range t.NumField() {
		name := nameOf(t.Field(i))
		if at.Name != "" {
			name = at.Name + "." + name
		}
		all = append(all, fieldsOf(t.Field(i).Type, of, Field{name, append(at.Path[:len(at.Path):len(at.Path)], i)})...)
	}
	return all
}
