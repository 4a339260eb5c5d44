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

// typesByName maps each leaf of a shape to its Go type.
var typesByName = map[string]reflect.Type{
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

// A Method holds the types of a method. The zero value is a method whose types are unknown.
type Method struct {
	In, Out reflect.Type // types of input and output; Free where the type is unknown
	Known   bool
}

// Unknown is a method whose types are unknown.
var Unknown = Method{In: freeType, Out: freeType}

// Parse parses a method's shape.
func Parse(shape string) (Method, error) {
	s, err := schema.ParseSignature(shape)
	if err != nil {
		return Unknown, err
	}
	b := builder{inProgress: map[*schema.Type]bool{}}
	m := Method{In: b.buildType(s.In), Out: freeType, Known: true}
	if s.Out != nil {
		m.Out = b.buildType(s.Out)
	}
	if b.hasBadName {
		return Unknown, fmt.Errorf("%q has a field name that is invalid in a struct tag", shape)
	}
	return m, nil
}

// A builder creates Go types from types of package schema.
type builder struct {
	inProgress map[*schema.Type]bool // types being built; inside itself, a type is Free
	hasBadName bool
}

func (b *builder) buildType(t *schema.Type) reflect.Type {
	if b.inProgress[t] {
		return freeType
	}
	b.inProgress[t] = true
	defer delete(b.inProgress, t)
	switch {
	case t.Word != "":
		if known, ok := typesByName[t.Word]; ok {
			return known
		}
		if strings.HasSuffix(t.Word, "(text)") {
			return textType
		}
		return freeType
	case t.Kind == reflect.Pointer:
		return reflect.PointerTo(b.buildType(t.Elem))
	case t.Kind == reflect.Slice, t.Kind == reflect.Array: // slices and arrays have the same wire format
		return reflect.SliceOf(b.buildType(t.Elem))
	case t.Kind == reflect.Map:
		key, elem := b.buildType(t.Key), b.buildType(t.Elem)
		if !canBeMapKey(key) {
			return freeType
		}
		return reflect.MapOf(key, elem)
	}
	return b.buildStruct(t)
}

// canBeMapKey reports whether values of t can be the names of a JSON object.
func canBeMapKey(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.String:
		return true
	case reflect.Int64, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Uint64, reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return t != typesByName["time.Duration"]
	}
	return false
}

// buildStruct creates a struct type. A field is sent only if it is set, because the zero values of
// some types cannot be encoded.
func (b *builder) buildStruct(s *schema.Type) reflect.Type {
	var fields []reflect.StructField
	for i, m := range s.Members {
		b.hasBadName = b.hasBadName || strings.ContainsAny(m.Name, "`\"\\,")
		t := b.buildType(m.Type)
		omit := ",omitempty"
		if t.Kind() == reflect.Struct && t.PkgPath() != "" && t != freeType && t != textType && t != typesByName["time.Time"] {
			omit = "" // the codec cannot determine whether its unexported fields are zero
		}
		fields = append(fields, reflect.StructField{Name: fmt.Sprint("F", i), Type: t,
			Tag: reflect.StructTag(fmt.Sprintf("msgpack:%q json:%q", m.Name+omit, m.Name))})
	}
	return reflect.StructOf(fields)
}

// jsonName returns the JSON name of a field of a struct created by buildStruct.
func jsonName(f reflect.StructField) string { return f.Tag.Get("json") }

// A Field is a Source or Sink in an input.
type Field struct {
	Name string // JSON name; components are separated by dots
	Path []int
}

// Sources returns the Source fields of the input in declaration order, including those in nested
// structs.
func (m Method) Sources() []Field { return m.fieldsOfType(sourceType) }

// Sinks returns the Sink fields of the input in declaration order, including those in nested
// structs.
func (m Method) Sinks() []Field { return m.fieldsOfType(sinkType) }

// fieldsOfType returns the fields of the input that have the given type, including those in nested
// structs.
func (m Method) fieldsOfType(of reflect.Type) []Field { return findFields(m.In, of, Field{}) }

func findFields(t, of reflect.Type, at Field) (all []Field) {
	switch {
	case t == of:
		return []Field{at}
	case t.Kind() != reflect.Struct || t.PkgPath() != "":
		return nil
	}
	for i := range t.NumField() {
		name := jsonName(t.Field(i))
		if at.Name != "" {
			name = at.Name + "." + name
		}
		all = append(all, findFields(t.Field(i).Type, of, Field{name, append(at.Path[:len(at.Path):len(at.Path)], i)})...)
	}
	return all
}
