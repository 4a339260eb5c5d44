package schema

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// A Kind specifies the form of a method's requests and responses.
type Kind string

// Kinds of methods.
const (
	Plain  Kind = "method"  // an input and an output
	OneWay Kind = "one-way" // an input
	Stream Kind = "stream"  // an input and a stream of items from the server
	Upload Kind = "upload"  // an input, a stream of items from the client, and an output
	Duplex Kind = "duplex"  // an input and a stream of items in each direction
)

// A Signature holds the types of a method.
type Signature struct {
	Kind    Kind
	In, Out *Type // Out is the item type for a Stream or a Duplex, and nil for a OneWay
	Up      *Type // type of the client's items; nil if there are none
}

// String describes the types on one line: "IN -> OUT", "IN -> ITEM ...", "IN, ITEM ... -> OUT",
// "IN, ITEM ... -> ITEM ...", or "IN" for a one-way method.
func (s Signature) String() string {
	text := s.In.String()
	if s.Up != nil {
		text += ", " + s.Up.String() + " ..."
	}
	if s.Out != nil {
		text += " -> " + s.Out.String()
	}
	if s.Kind == Stream || s.Kind == Duplex {
		text += " ..."
	}
	return text
}

// ParseSignature parses the output of Signature.String. It returns an error for text without types,
// such as the description of a method of package hg.
func ParseSignature(text string) (s Signature, err error) {
	p := parser{rest: text}
	s.Kind, s.In = OneWay, p.parseType(0)
	up, down := p.acceptText(", "), false
	if up {
		s.Up = p.parseType(0)
		p.expectText(" ...")
	}
	if p.acceptText(" -> ") {
		s.Out = p.parseType(0)
		down = p.acceptText(" ...")
		s.Kind = map[[2]bool]Kind{{}: Plain, {false, true}: Stream, {true, false}: Upload, {true, true}: Duplex}[[2]bool{up, down}]
	}
	if p.rest != "" || p.failed || up && s.Out == nil {
		return Signature{}, fmt.Errorf("malformed type description %q at %q", text, p.rest)
	}
	return s, nil
}

// A Method holds everything that the clients and servers of a method must agree on.
type Method struct {
	Name, Codec string
	Signature
}

// A Program holds everything that a program and its peers must agree on.
type Program struct {
	Methods []Method
	Codes   map[uint8]string // the program's own error codes and their names
}

const heading = "# The methods of a program, as its peers see them. What a change does to old peers: docs/EVOLUTION.md of Quicksilver.\n"

// Format formats p as text that is suitable for version control. Methods are in order of their
// names, with one line per field, followed by codes in numerical order.
func Format(p Program) string {
	var b strings.Builder
	b.WriteString(heading)
	for _, m := range slices.SortedFunc(slices.Values(p.Methods), func(a, b Method) int { return cmp.Compare(a.Name, b.Name) }) {
		fmt.Fprintf(&b, "\n%s %s\ncodec %s\n", m.Kind, quoteName(m.Name), quoteName(m.Codec))
		for _, side := range m.signatureTypes() {
			fmt.Fprintf(&b, "%s %s\n", side.label, (*side.at).formatLines())
		}
	}
	for i, code := range slices.Sorted(maps.Keys(p.Codes)) {
		if i == 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "code %d %s\n", code, strconv.Quote(p.Codes[code]))
	}
	return b.String()
}

// A signatureType is one of a signature's types and its label in a schema: in, up, down or out.
type signatureType struct {
	label string
	at    **Type
}

// signatureTypes returns the types that a method of s's kind has.
func (s *Signature) signatureTypes() []signatureType {
	all := []signatureType{{"in", &s.In}}
	if s.Kind == Upload || s.Kind == Duplex {
		all = append(all, signatureType{"up", &s.Up})
	}
	switch s.Kind {
	case Stream, Duplex:
		all = append(all, signatureType{"down", &s.Out})
	case Plain, Upload:
		all = append(all, signatureType{"out", &s.Out})
	}
	return all
}

func quoteName(name string) string {
	if needsNoQuotes(name) {
		return name
	}
	return strconv.Quote(name)
}

// ParseProgram parses the output of Format. Its errors include the line number.
func ParseProgram(text string) (program Program, err error) {
	p := parser{rest: text}
	var methods []Method
	for p.skipComments(); p.rest != "" && !p.failed; p.skipComments() {
		m := Method{}
		switch m.Kind = Kind(p.readUntil(" \n")); m.Kind {
		case Plain, OneWay, Stream, Upload, Duplex:
		case "code":
			p.parseCode(&program)
			continue
		default:
			p.failed = true
		}
		m.Name = p.parseName()
		p.expectText("\ncodec")
		m.Codec = p.parseName()
		for _, side := range m.signatureTypes() {
			p.expectText("\n" + side.label + " ")
			*side.at = p.parseType(0)
		}
		p.failed = p.failed || p.rest != "" && p.rest[0] != '\n' || slices.ContainsFunc(methods, func(other Method) bool { return other.Name == m.Name })
		methods = append(methods, m)
	}
	if p.failed {
		return Program{}, fmt.Errorf("malformed line %d", 1+strings.Count(text[:len(text)-len(p.rest)], "\n"))
	}
	program.Methods = methods
	return program, nil
}

// parseCode parses the number and name of an error code.
func (p *parser) parseCode(of *Program) {
	p.expectText(" ")
	n, err := strconv.ParseUint(p.readUntil(" \n"), 10, 8)
	name := p.parseName()
	if _, twice := of.Codes[uint8(n)]; err != nil || name == "" || twice || p.rest != "" && p.rest[0] != '\n' {
		p.failed = true
		return
	}
	if of.Codes == nil {
		of.Codes = map[uint8]string{}
	}
	of.Codes[uint8(n)] = name
}

// skipComments skips white space and lines that begin with #.
func (p *parser) skipComments() {
	for p.skipSpace(); p.acceptText("#"); p.skipSpace() {
		p.readUntil("\n")
	}
}

// parseName parses a space followed by a name.
func (p *parser) parseName() (name string) {
	p.expectText(" ")
	if quoted, err := strconv.QuotedPrefix(p.rest); err == nil {
		p.rest = p.rest[len(quoted):]
		name, _ = strconv.Unquote(quoted)
		return name
	}
	return p.readUntil(" \n")
}
