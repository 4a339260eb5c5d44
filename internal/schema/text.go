package schema

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// maxText is how long the description of a type may get, in bytes: of a struct that begins behind them only the name is written.
const maxText = 16 << 10

// String describes t on one line, for people, and for programs that call methods without the type:
//
//	main.In{Name string, Next? int, Body Source, Sizes map[string]int64, At time.Time}
//
// A name with a question mark may be left out of a message; names behind a bar are those that only the decoder knows. A struct that is encoded as an array stands in angle brackets. A type that is
// no struct is what it is made of, but for a few that are known by name. One that encodes itself is its name and how: slog.Level(text),
// netip.Addr(binary), kv.Set(own). One that contains itself is its name, inside.
func (t *Type) String() string {
	p := printer{}
	p.print(t, 0)
	return p.String()
}

// lines describes t with each field on a line.
func (t *Type) lines() string {
	p := printer{lines: true}
	p.print(t, 0)
	return p.String()
}

type printer struct {
	strings.Builder
	lines  bool
	inside []named
}

// A named is a type that has a name and is being described, and what it is called in the text; "any" for the second of one name.
type named struct {
	t    *Type
	name string
}

// enter returns the name of t in the text; "" if it has none there.
func (p *printer) enter(t *Type) string {
	name := typeName(t)
	if slices.ContainsFunc(p.inside, func(n named) bool { return n.name == name }) {
		name = "any"
	}
	p.inside = append(p.inside, named{t, name})
	if name == "any" || t.Kind != reflect.Struct {
		return ""
	}
	return name
}

func (p *printer) print(t *Type, depth int) {
	for _, outer := range p.inside {
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
		p.WriteString(typeName(t))
		return
	}
	name := p.enter(t)
	defer func() { p.inside = p.inside[:len(p.inside)-1] }()
	switch t.Kind {
	case reflect.Pointer:
		p.WriteString("*")
	case reflect.Slice:
		p.WriteString("[]")
	case reflect.Array:
		fmt.Fprintf(p, "[%d]", t.Len)
	case reflect.Map:
		p.WriteString("map[")
		p.print(t.Key, depth+1)
		p.WriteString("]")
	case reflect.Struct:
		p.printStruct(t, name, depth)
		return
	}
	p.print(t.Elem, depth+1)
}

func (p *printer) printStruct(t *Type, name string, depth int) {
	opens, closes := "{", "}"
	if t.Tuple {
		opens, closes = "<", ">"
	}
	p.WriteString(name + opens)
	defer p.WriteString(closes)
	separate := func(first bool, depth int) {
		switch {
		case p.lines:
			p.WriteString("\n" + strings.Repeat("\t", depth))
		case !first:
			p.WriteString(", ")
		}
	}
	written := 0
	for i, m := range t.Members {
		if t.Find(m.Name) != &t.Members[i] {
			continue // hidden by a later one, which has its bytes, too
		}
		separate(written == 0, depth+1)
		written++
		name := m.Name
		if !plainName(name) {
			name = strconv.Quote(name)
		}
		for _, a := range t.Aliases {
			if a.Member == i && plainName(a.Name) {
				name += "|" + a.Name
			}
		}
		if m.Optional {
			name += "?"
		}
		p.WriteString(name + " ")
		p.print(m.Type, depth+1)
	}
	if p.lines && written > 0 {
		separate(false, depth)
	}
}

// typeName is what a type is called where it is not described.
func typeName(t *Type) string {
	switch {
	case t.Name != "":
		return t.Name
	case t.Go != nil && nameOf(t.Go) != "":
		return nameOf(t.Go)
	}
	return "any"
}

// plainName reports whether a name needs no quotes.
func plainName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("\"\\`?|,{}<>[]", r) })
}

// maxDepth bounds how deeply a description nests.
const maxDepth = 100

// Parse reads what String has written, also with a line for each field.
func Parse(text string) (*Type, error) {
	p := parser{rest: text}
	t := p.parse(0)
	if p.space(); p.rest != "" || p.bad {
		return nil, fmt.Errorf("%q is no description of a type, from %q on", text, p.rest)
	}
	return t, nil
}

// A parser reads descriptions. What it reads comes from a peer.
type parser struct {
	rest   string
	bad    bool
	inside []*Type // structs that have a name
}

// take reads text if it is next. After a mistake it reads nothing, so that rest begins there.
func (p *parser) take(text string) (ok bool) {
	if p.bad {
		return false
	}
	p.rest, ok = strings.CutPrefix(p.rest, text)
	return ok
}

func (p *parser) want(text string) {
	if !p.take(text) {
		p.bad = true
	}
}

func (p *parser) space() {
	if !p.bad {
		p.rest = strings.TrimLeft(p.rest, " \t\n")
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

// kinds are the words that are kinds of Go.
var kinds = func() map[string]reflect.Kind {
	all := map[string]reflect.Kind{"string": reflect.String, "any": reflect.Interface, "error": reflect.Interface, "time.Duration": reflect.Int64}
	for k := reflect.Bool; k <= reflect.Complex128; k++ {
		all[k.String()] = k
	}
	return all
}()

func (p *parser) parse(depth int) *Type {
	t := &Type{}
	switch {
	case p.bad, depth > maxDepth:
		p.bad = true
		return t
	case p.take("*"):
		t.Kind, t.Elem = reflect.Pointer, p.parse(depth+1)
		return t
	case p.take("map["):
		t.Kind, t.Key = reflect.Map, p.parse(depth+1)
		p.want("]")
		t.Elem = p.parse(depth + 1)
		return t
	case p.take("[]"):
		t.Kind, t.Elem = reflect.Slice, p.parse(depth+1)
		return t
	case p.take("["):
		n, err := strconv.ParseUint(p.until("]"), 10, 31)
		p.bad = p.bad || err != nil
		p.want("]")
		t.Kind, t.Len, t.Elem = reflect.Array, int(n), p.parse(depth+1)
		return t
	}
	word := p.until(" ,}]>{<\t\n")
	switch {
	case p.take("{"):
		p.parseStruct(t, word, "}", depth)
		return t
	case p.take("<"):
		t.Tuple = true
		p.parseStruct(t, word, ">", depth)
		return t
	case word == "", strings.ContainsFunc(word, unicode.IsControl):
		p.bad = true
	}
	for _, outer := range p.inside {
		if outer.Name == word {
			return outer
		}
	}
	t.Word, t.Kind = word, kinds[word]
	return t
}

func (p *parser) parseStruct(t *Type, name, end string, depth int) {
	t.Kind, t.Name = reflect.Struct, name
	p.bad = p.bad || strings.ContainsFunc(name, unicode.IsControl)
	if name != "" {
		p.inside = append([]*Type{t}, p.inside...)
		defer func() { p.inside = p.inside[1:] }()
	}
	seen := map[string]bool{}
	for p.space(); !p.take(end) && !p.bad; p.space() {
		m := Member{Name: p.until(" ?|,{}<>\n")}
		if quoted, err := strconv.QuotedPrefix(m.Name + p.rest); err == nil {
			p.rest = (m.Name + p.rest)[len(quoted):]
			m.Name, _ = strconv.Unquote(quoted)
		}
		for p.take("|") {
			t.Aliases = append(t.Aliases, Alias{p.until(" ?|,{}<>\n"), nil, len(t.Members)})
		}
		m.Optional = p.take("?")
		p.want(" ")
		if m.Name == "" || seen[m.Name] {
			p.bad = true
			return
		}
		seen[m.Name] = true
		m.Type = p.parse(depth + 1)
		t.Members = append(t.Members, m)
		if !p.take(", ") && !strings.HasPrefix(p.rest, end) {
			p.bad = p.bad || !strings.HasPrefix(p.rest, "\n")
		}
	}
}
