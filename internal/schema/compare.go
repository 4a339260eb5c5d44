package schema

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// A Break is a change to a method or an error code that is incompatible with some old peers.
type Break struct {
	Method string   // name of the method, or the number of the code
	Change string   // description of the change
	Peers  []string // effect on each kind of old peer that is affected
}

func (b Break) String() string {
	return b.Method + ": " + b.Change + "\n\t" + strings.Join(b.Peers, "\n\t")
}

const (
	oldClients = "old clients, with a new server: "
	oldServers = "old servers, with a new client: "
)

// Compare returns the incompatibilities between peers with the methods in before and peers with
// those in after. If it returns none, an old client can call a new server, and a new client that
// sends nothing new can call an old server, without type errors. New methods and new error codes
// are always compatible.
func Compare(before, after Program) (breaks []Break) {
	for _, old := range before.Methods {
		i := slices.IndexFunc(after.Methods, func(m Method) bool { return m.Name == old.Name })
		if i < 0 {
			breaks = append(breaks, Break{old.Name, "the method was removed", []string{oldClients + "every call ends with ErrNoMethod; the handler does not exist"}})
			continue
		}
		breaks = append(breaks, compareMethods(&old, &after.Methods[i])...)
	}
	return append(breaks, compareCodes(before.Codes, after.Codes)...)
}

// compareCodes returns the breaks due to error codes that were removed, or renamed, which means
// that they now stand for a different error.
func compareCodes(before, after map[uint8]string) (breaks []Break) {
	for _, code := range slices.Sorted(maps.Keys(before)) {
		was, subject := before[code], fmt.Sprintf("error code %d", code)
		switch is, ok := after[code]; {
		case !ok:
			breaks = append(breaks, Break{subject, fmt.Sprintf("%q was removed", was), []string{
				oldServers + "a client does not know the code in their answers: it gets the number and the text"}})
		case is != was:
			breaks = append(breaks, Break{subject, fmt.Sprintf("it was %q and is %q: give what is new another number", was, is), []string{
				oldClients + fmt.Sprintf("they take the code in its answers for %q", was),
				oldServers + fmt.Sprintf("a client takes the code in their answers for %q", is)}})
		}
	}
	return breaks
}

func compareMethods(old, now *Method) (breaks []Break) {
	refused := []string{oldClients + "every call is refused with ErrProtocol; nothing runs", oldServers + "the same"}
	switch {
	case old.Kind != now.Kind:
		return []Break{{old.Name, fmt.Sprintf("the kind was %s and is %s", old.Kind, now.Kind), refused}}
	case old.Codec != now.Codec:
		return []Break{{old.Name, fmt.Sprintf("the codec was %s and is %s", old.Codec, now.Codec), refused}}
	}
	c := comparison{method: old.Name}
	for i, side := range old.signatureTypes() {
		was, is := *side.at, *now.signatureTypes()[i].at
		if side.label == "in" || side.label == "up" {
			c.addDifferences(typeComparison{writerIsOld: true}, was, is, side.label, oldClients+"refused with ErrBadInput; of an input nothing runs")
			c.addDifferences(typeComparison{onlyCertain: true}, is, was, side.label, oldServers+"refused with ErrBadInput; of an input nothing runs")
			continue
		}
		c.addDifferences(typeComparison{isAnswer: true, writerIsOld: true}, was, is, side.label, oldServers+"the client fails at the answer, after the handler has run")
		c.addDifferences(typeComparison{isAnswer: true}, is, was, side.label, oldClients+"the client fails at the answer, after the handler has run")
	}
	return c.breaks
}

// A comparison collects the breaks of a method, one for each incompatible change.
type comparison struct {
	method string
	breaks []Break
}

// addDifferences adds the differences that peers encounter when a reader receives values of a
// writer's type.
func (c *comparison) addDifferences(r typeComparison, writer, reader *Type, label, peers string) {
	r.seen = map[typePair]bool{}
	r.compareTypes(writer, reader, label, false)
	for _, change := range r.changes {
		i := slices.IndexFunc(c.breaks, func(b Break) bool { return b.Change == change })
		if i < 0 {
			c.breaks = append(c.breaks, Break{Method: c.method, Change: change})
			i = len(c.breaks) - 1
		}
		c.breaks[i].Peers = append(c.breaks[i].Peers, peers)
	}
}

// A typeComparison finds values that a writer can send and a reader rejects. It applies the rules
// of codec.FieldChecker and the numeric ranges of the codec.
type typeComparison struct {
	// isAnswer reports whether the values are responses. A response must have everything that its
	// reader needs, whereas the reader of an input must know everything that the writer sends.
	isAnswer    bool
	onlyCertain bool // count only changes that make every value invalid, because the writer need not use new members
	writerIsOld bool

	seen    map[typePair]bool
	changes []string
}

// A typePair is a pair of types, a writer's and a reader's, that has been compared.
type typePair struct {
	writer, reader *Type
	nilOK          bool
}

func (r *typeComparison) addChange(path, change string) {
	if change = path + " " + change; !slices.Contains(r.changes, change) {
		r.changes = append(r.changes, change)
	}
}

// addOneSided records a member that only the writer has, if isWriters is true, or only the reader.
func (r *typeComparison) addOneSided(path string, m *Member, isWriters bool, added string) {
	if change := "was removed"; r.writerIsOld == isWriters {
		r.addChange(path, fmt.Sprintf("(%v) %s", m.Type, change))
		return
	}
	r.addChange(path, fmt.Sprintf("(%v) was added%s", m.Type, added))
}

// addMismatch records two incompatible types.
func (r *typeComparison) addMismatch(path string, w, t *Type) {
	if !r.writerIsOld {
		w, t = t, w
	}
	r.addChange(path, fmt.Sprintf("was %v and is %v", w, t))
}

// compareTypes compares the writer's type w with the reader's type t, and records values of w that
// the reader rejects. nilOK reports whether the reader accepts nil at path.
func (r *typeComparison) compareTypes(w, t *Type, path string, nilOK bool) {
	key := typePair{w, t, nilOK}
	if w == t || r.seen[key] {
		return
	}
	r.seen[key] = true
	if t.Word == "any" && w.fitsInAny(map[*Type]bool{}) {
		return
	}
	canBeNil := t.Kind == reflect.Pointer || t.Kind == reflect.Interface || t.Kind == reflect.Slice || t.Kind == reflect.Map
	if w.Word == "any" {
		if !r.onlyCertain {
			r.addMismatch(path, w, t)
		}
		return
	}
	for w.Kind == reflect.Pointer && w.Word == "" {
		if r.isAnswer && !canBeNil && !nilOK {
			r.addMismatch(path, w, t)
			return
		}
		w = w.Elem
	}
	for t.Kind == reflect.Pointer && t.Word == "" {
		t = t.Elem
	}
	switch {
	case t.Word == "any" && w.fitsInAny(map[*Type]bool{}):
	case w.isBytes() || t.isBytes():
		if !r.canHoldBytes(w, t, nilOK) {
			r.addMismatch(path, w, t)
		}
	case w.Word != "" || t.Word != "":
		if !r.canHoldLeaf(w, t) {
			r.addMismatch(path, w, t)
		}
	case w.Kind == reflect.Struct && t.Kind == reflect.Struct && w.Tuple == t.Tuple:
		r.compareStructs(w, t, path)
	case w.Kind == reflect.Map && t.Kind == reflect.Map:
		r.compareTypes(w.Key, t.Key, path+"[key]", false)
		r.compareTypes(w.Elem, t.Elem, path+"[]", false)
	case t.Kind == reflect.Slice && (w.Kind == reflect.Slice || w.Kind == reflect.Array),
		t.Kind == reflect.Array && w.Kind == reflect.Array && r.canHoldLen(w, t):
		r.compareTypes(w.Elem, t.Elem, path+"[]", false)
	default:
		r.addMismatch(path, w, t)
	}
}

// fitsInAny reports whether every value of t can be decoded into an any, which requires that its
// maps have string keys.
func (t *Type) fitsInAny(seen map[*Type]bool) bool {
	if t == nil || seen[t] || t.Word != "" {
		return true
	}
	seen[t] = true
	for _, m := range t.Members {
		if !m.Type.fitsInAny(seen) {
			return false
		}
	}
	return (t.Kind != reflect.Map || t.Key.Word == "string") && t.Elem.fitsInAny(seen)
}

// canHoldLen reports whether array t has room for w's elements and, for a response, whether w has
// enough elements.
func (r *typeComparison) canHoldLen(w, t *Type) bool {
	return w.Len == t.Len || w.Len < t.Len && !r.isAnswer
}

// isBytes reports whether t is a slice or array of bytes.
func (t *Type) isBytes() bool {
	return t.Word == "" && (t.Kind == reflect.Slice || t.Kind == reflect.Array) && t.Elem.Kind == reflect.Uint8
}

// canHoldBytes reports whether t can hold every value of w, where at least one of the two is bytes.
func (r *typeComparison) canHoldBytes(w, t *Type, nilOK bool) bool {
	isText := func(t *Type) bool { return t.Word == "string" || t.isBytes() && t.Kind == reflect.Slice }
	switch {
	case !isText(w) && !w.isBytes(), !isText(t) && !t.isBytes():
		return false
	case t.Kind == reflect.Array:
		return w.Kind == reflect.Array && r.canHoldLen(w, t)
	case r.isAnswer && w.Kind == reflect.Slice && t.Word == "string":
		return nilOK
	}
	return true
}

// canHoldLeaf reports whether t can hold every value of w, where at least one of the two is a leaf.
func (r *typeComparison) canHoldLeaf(w, t *Type) bool {
	if w.Word == t.Word {
		return true
	}
	low, high, isInt := w.intRange()
	tLow, tHigh, toInt := t.intRange()
	switch {
	case isInt && (toInt || t.isFloat()):
		return r.onlyCertain || tLow <= low && high <= tHigh
	case w.Kind == reflect.Float32:
		return t.Kind == reflect.Float64
	}
	return false
}

func (t *Type) isFloat() bool { return t.Kind == reflect.Float32 || t.Kind == reflect.Float64 }

// intRange returns the range of integers that t represents exactly. is reports whether t is an
// integer type.
func (t *Type) intRange() (low int64, high uint64, is bool) {
	bits := map[reflect.Kind]int{
		reflect.Int8: 7, reflect.Int16: 15, reflect.Int32: 31, reflect.Int64: 63, reflect.Int: 63, reflect.Float32: 24, reflect.Float64: 53,
		reflect.Uint8: 8, reflect.Uint16: 16, reflect.Uint32: 32, reflect.Uint64: 64, reflect.Uint: 64,
	}[t.Kind]
	if bits == 0 {
		return 0, 0, false
	}
	high = 1<<bits - 1
	if t.Kind >= reflect.Uint && t.Kind <= reflect.Uint64 {
		return 0, high, true
	}
	return -1 << bits, high, !t.isFloat()
}

func (r *typeComparison) compareStructs(w, t *Type, path string) {
	if w.Tuple {
		names := func(t *Type) (all []string) {
			for _, m := range t.Members {
				all = append(all, m.Name)
			}
			return all
		}
		if !slices.Equal(names(w), names(t)) {
			r.addMismatch(path, w, t)
			return
		}
	}
	for i := range w.Members {
		m := &w.Members[i]
		at := path + "." + m.Name
		same, known := t.findDecoded(m.Name)
		switch {
		case w.Find(m.Name) != m: // hidden by another member
		case same == nil && !known:
			if !r.isAnswer && (!r.onlyCertain || !m.canBeEmpty()) {
				r.addOneSided(at, m, true, ", and is sent even if it is zero: make it a pointer, or give it the tag omitempty")
			}
		case same == nil: // an embedded struct
		case r.isAnswer && m.Optional && !same.CanBeMissing():
			r.addChange(at, fmt.Sprintf("(%v) may be left out by one side, and the other side needs it: the tag omitempty was added or removed", m.Type))
		default:
			r.compareTypes(m.Type, same.Type, at, same.CanBeMissing())
		}
	}
	for i := range t.Members {
		if m := &t.Members[i]; r.isAnswer && !m.CanBeMissing() && t.Find(m.Name) == m && !slices.ContainsFunc(w.Members, func(other Member) bool { same, _ := t.findDecoded(other.Name); return same == m }) {
			r.addOneSided(path+"."+m.Name, m, false, ", and the client needs it: make it a pointer, or give it the tag omitempty")
		}
	}
}

// findDecoded returns the member that the decoder sets for name. known is false if there is no such
// member. For an embedded struct, m is nil and known is true.
func (t *Type) findDecoded(name string) (m *Member, known bool) {
	if m = t.Find(name); m != nil {
		return m, true
	}
	for _, a := range t.Aliases {
		if a.Name == name && a.Member >= 0 {
			return &t.Members[a.Member], true
		}
	}
	return nil, false
}

// canBeEmpty reports whether m is omitted, or is sent without a value, if it is zero.
func (m *Member) canBeEmpty() bool {
	switch t := m.Type; {
	case m.Optional, t.Kind == reflect.Pointer, t.Kind == reflect.Interface, t.Word == "Source", t.Word == "Sink":
		return true
	case t.Word != "":
		return kindsByWord[t.Word] != reflect.Invalid
	default:
		return t.Kind == reflect.Slice || t.Kind == reflect.Map
	}
}
