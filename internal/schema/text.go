package schema

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// maxText limits the description of a type, in bytes. A struct that starts beyond the limit is
// described by its name alone.
const maxText = 16 << 10

// String describes t on one line, for users and for programs that call methods without having the
// type:
//
//	main.In{Name string, Next? int, Body Source, Sizes map[string]int64, At time.Time}
//
// A question mark marks a field that may be omitted from a message. Names after a vertical bar are
// aliases that only the decoder accepts. A struct encoded as an array is enclosed in angle
// brackets. Other types are described by their elements, except for a few that have a word of their
// own. A type that encodes itself is described by its name and its coding, as in slog.Level(text),
// netip.Addr(binary), and kv.Set(own). Inside its own description, a type is represented by its
// name.
func (t *Type) String() string {
	p := printer{}
	p.printType(t, 0)
	return p.String()
}

// formatLines describes t with each field on a separate line.
func (t *Type) formatLines() string {
	p := printer{multiline: true}
	p.printType(t, 0)
	return p.String()
}

type printer struct {
	strings.Builder
	multiline bool
	indent    int // number of open structs, used if multiline is set
	enclosing []namedType
}

// A namedType is a type being described and its name in the text. The name is "any" if an enclosing
// type has the same name.
type namedType struct {
	t    *Type
	name string
}

// enterType adds t to the enclosing types. It returns the name to write for t, or "" if t is
// written without a name.
func (p *printer) enterType(t *Type) string {
	name := displayName(t)
	if slices.ContainsFunc(p.enclosing, func(n namedType) bool { return n.name == name }) {
		name = "any"
	}
	p.enclosing = append(p.enclosing, namedType{t, name})
	if name == "any" || t.Kind != reflect.Struct {
		return ""
	}
	return name
}

func (p *printer) printType(t *Type, depth int) {
	for _, outer := range p.enclosing {
		if outer.t == t && (t.Name != "" || t.Go != nil && t.Go.Name() != "") {
			p.WriteString(outer.name)
			return
		}
	}
	switch {
	case t.Word != "":
		p.WriteString(t.Word)
		return
	case t.Kind == reflect.Struct && p.Len() > maxText, depth > maxDepth:
		p.WriteString(displayName(t))
		return
	}
	name := p.enterType(t)
	defer func() { p.enclosing = p.enclosing[:len(p.enclosing)-1] }()
	switch t.Kind {
	case reflect.Pointer:
		p.WriteString("*")
	case reflect.Slice:
		p.WriteString("[]")
	case reflect.Array:
		fmt.Fprintf(p, "[%d]", t.Len)
	case reflect.Map:
		p.WriteString("map[")
		p.printType(t.Key, depth+1)
		p.WriteString("]")
	case reflect.Struct:
		p.printStruct(t, name, depth)
		return
	}
	p.printType(t.Elem, depth+1)
}

func (p *printer) printStruct(t *Type, name string, depth int) {
	opens, closes := "{", "}"
	if t.Tuple {
		opens, closes = "<", ">"
	}
	p.WriteString(name + opens)
	defer p.WriteString(closes)
	separate := func(first bool) {
		switch {
		case p.multiline:
			p.WriteString("\n" + strings.Repeat("\t", p.indent))
		case !first:
			p.WriteString(", ")
		}
	}
	p.indent++
	written := 0
	for i, m := range t.Members {
		if t.Find(m.Name) != &t.Members[i] {
			continue // hidden by a later member, which also has its bytes
		}
		separate(written == 0)
		written++
		name := m.Name
		if !needsNoQuotes(name) {
			name = strconv.Quote(name)
		}
		for _, a := range t.Aliases {
			if a.Member == i && needsNoQuotes(a.Name) {
				name += "|" + a.Name
			}
		}
		if m.Optional {
			name += "?"
		}
		p.WriteString(name + " ")
		p.printType(m.Type, depth+1)
	}
	p.indent--
	if p.multiline && written > 0 {
		separate(false)
	}
}

// displayName returns the name of t for use where t is not described.
func displayName(t *Type) string {
	switch {
	case t.Name != "":
		return t.Name
	case t.Go != nil && qualifiedName(t.Go) != "":
		return qualifiedName(t.Go)
	}
	return "any"
}

// needsNoQuotes reports whether name can be written without quotes.
func needsNoQuotes(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("\"\\`?|,{}<>[]", r) })
}

// maxDepth is the maximum nesting depth of a description.
const maxDepth = 100

// Parse parses the output of String or formatLines.
func Parse(text string) (*Type, error) {
	p := parser{rest: text}
	t := p.parseType(0)
	if p.skipSpace(); p.rest != "" || p.failed {
		return nil, fmt.Errorf("malformed type description %q at %q", text, p.rest)
	}
	return t, nil
}

// A parser parses descriptions received from peers, which are untrusted.
type parser struct {
	rest      string
	failed    bool
	enclosing []*Type // enclosing structs that have a name, innermost first
}

// acceptText consumes text if it is next. After an error it consumes nothing, so that rest begins
// at the error.
func (p *parser) acceptText(text string) (ok bool) {
	if p.failed {
		return false
	}
	p.rest, ok = strings.CutPrefix(p.rest, text)
	return ok
}

func (p *parser) expectText(text string) {
	if !p.acceptText(text) {
		p.failed = true
	}
}

func (p *parser) skipSpace() {
	if !p.failed {
		p.rest = strings.TrimLeft(p.rest, " \t\n")
	}
}

// readUntil consumes and returns the text before the next occurrence of any of the given bytes.
func (p *parser) readUntil(bytes string) string {
	i := strings.IndexAny(p.rest, bytes)
	if i < 0 {
		i = len(p.rest)
	}
	word := p.rest[:i]
	p.rest = p.rest[i:]
	return word
}

// kindsByWord maps each leaf word that denotes a Go kind to that kind.
var kindsByWord = func() map[string]reflect.Kind {
	all := map[string]reflect.Kind{"string": reflect.String, "any": reflect.Interface, "error": reflect.Interface, "time.Duration": reflect.Int64}
	for k := reflect.Bool; k <= reflect.Complex128; k++ {
		all[k.String()] = k
	}
	return all
}()

func (p *parser) parseType(depth int) *Type {
	t := &Type{}
	switch {
	case p.failed, depth > maxDepth:
		p.failed = true
		return t
	case p.acceptText("*"):
		t.Kind, t.Elem = reflect.Pointer, p.parseType(depth+1)
		return t
	case p.acceptText("map["):
		t.Kind, t.Key = reflect.Map, p.parseType(depth+1)
		p.expectText("]")
		t.Elem = p.parseType(depth + 1)
		return t
	case p.acceptText("[]"):
		t.Kind, t.Elem = reflect.Slice, p.parseType(depth+1)
		return t
	case p.acceptText("["):
		n, err := strconv.ParseUint(p.readUntil("]"), 10, 31)
		p.failed = p.failed || err != nil
		p.expectText("]")
		t.Kind, t.Len, t.Elem = reflect.Array, int(n), p.parseType(depth+1)
		return t
	}
	word := p.readUntil(" ,}]>{<\t\n")
	switch {
	case p.acceptText("{"):
		p.parseStruct(t, word, "}", depth)
		return t
	case p.acceptText("<"):
		t.Tuple = true
		p.parseStruct(t, word, ">", depth)
		return t
	case word == "", strings.ContainsFunc(word, unicode.IsControl):
		p.failed = true
	}
	for _, outer := range p.enclosing {
		if outer.Name == word {
			return outer
		}
	}
	t.Word, t.Kind = word, kindsByWord[word]
	return t
}

func (p *parser) parseStruct(t *Type, name, end string, depth int) {
	t.Kind, t.Name = reflect.Struct, name
	p.failed = p.failed || strings.ContainsFunc(name, unicode.IsControl)
	if name != "" {
		p.enclosing = append([]*Type{t}, p.enclosing...)
		defer func() { p.enclosing = p.enclosing[1:] }()
	}
	seen := map[string]bool{}
	for p.skipSpace(); !p.acceptText(end) && !p.failed; p.skipSpace() {
		m := Member{Name: p.readUntil(" ?|,{}<>\n")}
		if quoted, err := strconv.QuotedPrefix(m.Name + p.rest); err == nil {
			p.rest = (m.Name + p.rest)[len(quoted):]
			m.Name, _ = strconv.Unquote(quoted)
		}
		for p.acceptText("|") {
			t.Aliases = append(t.Aliases, Alias{p.readUntil(" ?|,{}<>\n"), nil, len(t.Members)})
		}
		m.Optional = p.acceptText("?")
		p.expectText(" ")
		if m.Name == "" || seen[m.Name] {
			p.failed = true
			return
		}
		seen[m.Name] = true
		m.Type = p.parseType(depth + 1)
		t.Members = append(t.Members, m)
		if !p.acceptText(", ") && !strings.HasPrefix(p.rest, end) {
			p.failed = p.failed || !strings.HasPrefix(p.rest, "\n")
		}
	}
}
