package typed

import (
	"fmt"
	"math/big"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"time"

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

// Parse reads the shape of a method: that of its input, and unless it is one-way that of its output behind an arrow.
func Parse(shape string) (Method, error) {
	p := parser{rest: shape}
	m := Method{In: p.typ(0), Out: freeType, Known: true}
	if p.take(" -> ") {
		m.Out = p.typ(0)
	}
	if p.rest != "" || p.bad {
		return Unknown, fmt.Errorf("%q is no description of types, from %q on", shape, p.rest)
	}
	return m, nil
}

type parser struct {
	rest string
	bad  bool
}

func (p *parser) take(text string) (ok bool) {
	p.rest, ok = strings.CutPrefix(p.rest, text)
	return ok
}

func (p *parser) want(text string) {
	if !p.take(text) {
		p.bad = true
	}
}

// until returns what is in front of the next of some bytes.
func (p *parser) until(bytes string) string {
	i := strings.IndexAny(p.rest, bytes)
	if i < 0 {
		i = len(p.rest)
	}
	word := p.rest[:i]
	p.rest = p.rest[i:]
	return word
}

// maxDepth bounds a shape, which comes from a peer.
const maxDepth = 100

func (p *parser) typ(depth int) reflect.Type {
	switch {
	case p.bad, depth > maxDepth:
		p.bad = true
		return freeType
	case p.take("*"):
		return reflect.PointerTo(p.typ(depth + 1))
	case p.take("{"):
		return p.record(depth)
	case p.take("map["):
		key := p.typ(depth + 1)
		p.want("]")
		elem := p.typ(depth + 1)
		if !keyed(key) {
			return freeType
		}
		return reflect.MapOf(key, elem)
	case p.take("["):
		if n := p.until("]"); n != "" {
			if _, err := strconv.ParseUint(n, 10, 32); err != nil {
				p.bad = true
			}
		}
		p.want("]")
		return reflect.SliceOf(p.typ(depth + 1)) // of an array, too: the wire does not tell them apart
	}
	word := p.until(" ,}]")
	t, ok := named[word]
	switch {
	case word == "":
		p.bad = true
	case ok:
		return t
	case strings.HasSuffix(word, "(text)"):
		return textType
	}
	return freeType
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

// record reads the fields of a struct. They are sent only if they are given: the zero value of some types cannot be.
func (p *parser) record(depth int) reflect.Type {
	var fields []reflect.StructField
	seen := map[string]bool{}
	for !p.take("}") && !p.bad {
		if len(fields) > 0 {
			p.want(", ")
		}
		name := p.until(" ,}")
		p.want(" ")
		if name == "" || seen[name] || strings.ContainsAny(name, "`\"\\") {
			p.bad = true
			break
		}
		seen[name] = true
		t := p.typ(depth + 1)
		omit := ",omitempty"
		if t.Kind() == reflect.Struct && t.PkgPath() != "" && t != freeType && t != textType && t != named["time.Time"] {
			omit = "" // what it holds cannot be seen
		}
		fields = append(fields, reflect.StructField{Name: fmt.Sprint("F", len(fields)), Type: t,
			Tag: reflect.StructTag(fmt.Sprintf("msgpack:%q json:%q", name+omit, name))})
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
