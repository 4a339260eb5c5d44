package codec

import (
	"encoding/binary"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/quicksilver-rpc/quicksilver/internal/schema"
)

// A plan encodes and decodes structs of one type without the msgpack package, which looks up the
// coder of each field anew for each value and reads and writes byte by byte. A plan writes the same
// bytes as the msgpack package, and reads the bytes that a peer with the same type writes. It
// rejects all other bytes, whether or not they are valid. The msgpack package then decodes them,
// with the guard and the budget.
//
// A type has a plan if it is a struct composed of leaves, []byte, []string, and other such structs,
// without embedded fields or tag options. No message of such a type can take more memory than its
// length justifies.
type plan struct {
	typ    reflect.Type
	begin  byte // first byte of the encoding: a map with all fields
	fields []plannedField
}

// A plannedField describes how a plan encodes one field.
type plannedField struct {
	index int
	name  string // encoded name
	kind  reflect.Kind
	form  plannedForm
	inner *plan // plan of a struct field
}

// A plannedForm specifies how a field is encoded.
type plannedForm uint8

const (
	plannedBool plannedForm = iota
	plannedInt
	plannedUint
	plannedFloat32
	plannedFloat64
	plannedString
	plannedBytes
	plannedStrings
	plannedStruct
)

// maxPlanDepth is the maximum nesting depth of structs in a plan. It is less than MaxDepth.
const maxPlanDepth = 8

// planFor returns the plan for the struct type t, or nil if it has none.
func planFor(t reflect.Type) *plan {
	p := newPlan(schema.Of(t), 0)
	if p == nil || !p.agrees() {
		return nil
	}
	return p
}

// newPlan returns the plan for the struct type t at the given depth, or nil if it has none.
func newPlan(t *schema.Type, depth int) *plan {
	if t.Kind != reflect.Struct || t.Coding() != "" || t.Tuple || depth == maxPlanDepth || len(t.Members) == 0 || len(t.Members) > maxFlat || len(t.Aliases) > 0 {
		return nil
	}
	p := &plan{typ: t.Go, begin: 0x80 | byte(len(t.Members))}
	for i := range t.Fields {
		f := &t.Fields[i]
		if f.Embedded || f.Name == "_msgpack" || len(f.Options) > 0 {
			return nil
		}
		if !f.Sent() {
			continue
		}
		n := len(p.fields)
		if n == len(t.Members) || t.Members[n].Name != f.WireName() || t.Members[n].Type != f.Type {
			return nil
		}
		field := plannedField{index: i, name: string(appendString(nil, f.WireName())), kind: f.Type.Kind}
		if !field.choose(f.Type, depth) || slices.ContainsFunc(p.fields, func(other plannedField) bool { return other.name == field.name }) {
			return nil
		}
		p.fields = append(p.fields, field)
	}
	if len(p.fields) != len(t.Members) {
		return nil
	}
	return p
}

// choose sets the form in which a field of type t is encoded. It returns false if the field cannot
// be part of a plan.
func (f *plannedField) choose(t *schema.Type, depth int) bool {
	if t.Coding() != "" {
		return false
	}
	switch {
	case t.Kind == reflect.Bool:
		f.form = plannedBool
	case t.Kind >= reflect.Int && t.Kind <= reflect.Int64:
		f.form = plannedInt
	case t.Kind >= reflect.Uint && t.Kind <= reflect.Uint64:
		f.form = plannedUint
	case t.Kind == reflect.Float32:
		f.form = plannedFloat32
	case t.Kind == reflect.Float64:
		f.form = plannedFloat64
	case t.Kind == reflect.String:
		f.form = plannedString
	case t.Go == reflect.TypeFor[[]byte]():
		f.form = plannedBytes
	case t.Go == reflect.TypeFor[[]string]():
		f.form = plannedStrings
	case t.Kind == reflect.Struct:
		f.form, f.inner = plannedStruct, newPlan(t, depth+1)
		return f.inner != nil
	default:
		return false
	}
	return true
}

// agrees reports whether p encodes and decodes sample values as the msgpack package does. The
// results differ if the program has registered its own encoders or decoders for the types of
// fields.
func (p *plan) agrees() (agree bool) {
	defer func() { // a registered encoder may panic
		if recover() != nil {
			agree = false
		}
	}()
	for _, sample := range samples {
		v := reflect.New(p.typ)
		p.fill(v.Elem(), sample)
		want, err := appendReflected(nil, v.Interface(), false)
		if err != nil || string(p.append(nil, v.Elem())) != string(want) {
			return false
		}
		there, here := reflect.New(p.typ), reflect.New(p.typ)
		if err := decodeReflected(want, there.Interface()); err != nil || !p.decode(want, here.Elem()) {
			return false
		}
		if !reflect.DeepEqual(there.Interface(), v.Interface()) || !reflect.DeepEqual(here.Interface(), v.Interface()) {
			return false
		}
	}
	return true
}

// A sample holds one value for each kind of field; see plan.agrees.
type sample struct {
	n       int64
	text    string
	bytes   []byte
	strings []string
}

var samples = []sample{
	{},
	{n: 7, text: "a", bytes: []byte{1}, strings: []string{}},
	{n: -100, text: strings.Repeat("b", 40), bytes: []byte{}, strings: []string{"", "c"}},
	{n: math.MaxInt64, text: strings.Repeat("d", 300), bytes: make([]byte, 300), strings: make([]string, 20)},
}

// fill sets all fields of v to the values of a sample. A number is set to the part of s.n that
// fits.
func (p *plan) fill(v reflect.Value, s sample) {
	for i := range p.fields {
		switch f, at := &p.fields[i], v.Field(p.fields[i].index); f.form {
		case plannedBool:
			at.SetBool(s.n != 0)
		case plannedInt:
			at.SetInt(s.n >> (64 - at.Type().Bits()))
		case plannedUint:
			at.SetUint(uint64(s.n) >> (64 - at.Type().Bits()))
		case plannedFloat32, plannedFloat64:
			at.SetFloat(float64(int32(s.n)) / 2)
		case plannedString:
			at.SetString(s.text)
		case plannedBytes:
			at.SetBytes(s.bytes)
		case plannedStrings:
			*at.Addr().Interface().(*[]string) = s.strings
		case plannedStruct:
			f.inner.fill(at, s)
		}
	}
}

// append appends the encoding of v, an addressable struct, to dst.
func (p *plan) append(dst []byte, v reflect.Value) []byte {
	dst = append(dst, p.begin)
	for i := range p.fields {
		f := &p.fields[i]
		dst = append(dst, f.name...)
		switch at := v.Field(f.index); f.form {
		case plannedBool:
			c := byte(0xc2)
			if at.Bool() {
				c = 0xc3
			}
			dst = append(dst, c)
		case plannedInt:
			dst = appendInt(dst, f.kind, at.Int())
		case plannedUint:
			dst = appendUint(dst, f.kind, at.Uint())
		case plannedFloat32:
			dst = binary.BigEndian.AppendUint32(append(dst, 0xca), math.Float32bits(float32(at.Float())))
		case plannedFloat64:
			dst = binary.BigEndian.AppendUint64(append(dst, 0xcb), math.Float64bits(at.Float()))
		case plannedString:
			dst = appendString(dst, at.String())
		case plannedBytes:
			dst = appendBytes(dst, at.Bytes())
		case plannedStrings:
			dst = appendStrings(dst, *at.Addr().Interface().(*[]string))
		case plannedStruct:
			dst = f.inner.append(dst, at)
		}
	}
	return dst
}

// appendInt encodes a signed integer. An int takes as few bytes as possible, and any other kind
// takes the bytes of its size.
func appendInt(dst []byte, kind reflect.Kind, n int64) []byte {
	switch kind {
	case reflect.Int8:
		return append(dst, 0xd0, byte(n))
	case reflect.Int16:
		return binary.BigEndian.AppendUint16(append(dst, 0xd1), uint16(n))
	case reflect.Int32:
		return binary.BigEndian.AppendUint32(append(dst, 0xd2), uint32(n))
	case reflect.Int64:
		return binary.BigEndian.AppendUint64(append(dst, 0xd3), uint64(n))
	}
	switch {
	case n >= 0:
		return appendUint(dst, reflect.Uint, uint64(n))
	case n >= -32:
		return append(dst, byte(n))
	case n >= math.MinInt8:
		return appendInt(dst, reflect.Int8, n)
	case n >= math.MinInt16:
		return appendInt(dst, reflect.Int16, n)
	case n >= math.MinInt32:
		return appendInt(dst, reflect.Int32, n)
	}
	return appendInt(dst, reflect.Int64, n)
}

// appendUint encodes an unsigned integer. A uint takes as few bytes as possible, and any other kind
// takes the bytes of its size.
func appendUint(dst []byte, kind reflect.Kind, n uint64) []byte {
	switch kind {
	case reflect.Uint8:
		return append(dst, 0xcc, byte(n))
	case reflect.Uint16:
		return binary.BigEndian.AppendUint16(append(dst, 0xcd), uint16(n))
	case reflect.Uint32:
		return binary.BigEndian.AppendUint32(append(dst, 0xce), uint32(n))
	case reflect.Uint64:
		return binary.BigEndian.AppendUint64(append(dst, 0xcf), n)
	}
	switch {
	case n <= math.MaxInt8:
		return append(dst, byte(n))
	case n <= math.MaxUint8:
		return appendUint(dst, reflect.Uint8, n)
	case n <= math.MaxUint16:
		return appendUint(dst, reflect.Uint16, n)
	case n <= math.MaxUint32:
		return appendUint(dst, reflect.Uint32, n)
	}
	return appendUint(dst, reflect.Uint64, n)
}

func appendStrings(dst []byte, all []string) []byte {
	switch n := len(all); {
	case all == nil:
		return append(dst, 0xc0)
	case n < 16:
		dst = append(dst, 0x90|byte(n))
	case n < 1<<16:
		dst = binary.BigEndian.AppendUint16(append(dst, 0xdc), uint16(n))
	default:
		dst = binary.BigEndian.AppendUint32(append(dst, 0xdd), uint32(n))
	}
	for _, s := range all {
		dst = appendString(dst, s)
	}
	return dst
}

// decode decodes b into v, an addressable struct. It returns false if b, apart from the sizes of
// integers and lengths, is not what append writes. In that case some fields of v may have been set.
// All of them are present in b, so the msgpack package sets them again.
func (p *plan) decode(b []byte, v reflect.Value) bool {
	return p.decodeAt(b, 0, v) == len(b)
}

// decodeAt decodes the struct at pos and returns the offset of its end, or a negative number if the
// plan does not match.
func (p *plan) decodeAt(b []byte, pos int, v reflect.Value) int {
	if pos >= len(b) || b[pos] != p.begin {
		return -1
	}
	pos++
	for i := range p.fields {
		f := &p.fields[i]
		if len(b)-pos <= len(f.name) || string(b[pos:pos+len(f.name)]) != f.name {
			return -1
		}
		if pos = f.decodeAt(b, pos+len(f.name), v.Field(f.index)); pos < 0 {
			return -1
		}
	}
	return pos
}

// decodeAt decodes the value at pos, which must be less than len(b), into at. It returns the offset
// of the value's end, or a negative number if the plan does not match.
func (f *plannedField) decodeAt(b []byte, pos int, at reflect.Value) int {
	c := b[pos]
	switch f.form {
	case plannedBool:
		if c != 0xc2 && c != 0xc3 {
			return -1
		}
		at.SetBool(c == 0xc3)
		return pos + 1
	case plannedInt, plannedUint:
		end := pos + 1 + int(forms[c].n)
		if !integer(c) || end > len(b) {
			return -1
		}
		low, high := integerAt(b, pos)
		if f.form == plannedUint {
			if low < 0 || at.OverflowUint(high) {
				return -1
			}
			at.SetUint(high)
			return end
		}
		if high > math.MaxInt64 {
			return -1
		}
		if low == 0 {
			low = int64(high)
		}
		if at.OverflowInt(low) {
			return -1
		}
		at.SetInt(low)
		return end
	case plannedFloat32:
		if c != 0xca || len(b)-pos < 5 {
			return -1
		}
		at.SetFloat(float64(math.Float32frombits(binary.BigEndian.Uint32(b[pos+1:]))))
		return pos + 5
	case plannedFloat64:
		if c != 0xcb || len(b)-pos < 9 {
			return -1
		}
		at.SetFloat(math.Float64frombits(binary.BigEndian.Uint64(b[pos+1:])))
		return pos + 9
	case plannedString:
		body, end := bytesAt(b, pos)
		if end >= 0 {
			at.SetString(string(body))
		}
		return end
	case plannedBytes:
		if c == 0xc0 {
			at.SetBytes(nil)
			return pos + 1
		}
		body, end := bytesAt(b, pos)
		if end >= 0 {
			at.SetBytes(copyInto(at.Bytes(), body))
		}
		return end
	case plannedStrings:
		return decodeStrings(b, pos, at.Addr().Interface().(*[]string))
	}
	return f.inner.decodeAt(b, pos, at)
}

// bytesAt returns the bytes or string at pos and the offset of its end. If another kind of value is
// at pos, or if the value is incomplete, the offset is negative.
func bytesAt(b []byte, pos int) (body []byte, end int) {
	c := b[pos]
	if !bytesLike(c) {
		return nil, -1
	}
	f := forms[c]
	at := pos + 1 + int(f.width)
	if at > len(b) {
		return nil, -1
	}
	n := uint64(f.n) + number(b[pos+1:], f.width)
	if n > uint64(len(b)-at) {
		return nil, -1
	}
	end = at + int(n)
	return b[at:end], end
}

// copyInto returns a copy of body. The copy uses the memory of old if that is large enough.
func copyInto(old, body []byte) []byte {
	if old == nil || cap(old) < len(body) {
		b := make([]byte, len(body)) // followed by copy, so that the compiler does not clear the memory first
		copy(b, body)
		return b
	}
	return append(old[:0], body...)
}

// decodeStrings decodes the array of strings at pos into a new slice. It returns the offset of the
// array's end, or a negative number if the plan does not match.
func decodeStrings(b []byte, pos int, to *[]string) int {
	if b[pos] == 0xc0 {
		*to = nil
		return pos + 1
	}
	f := forms[b[pos]]
	if at := pos + 1 + int(f.width); f.class != list || at > len(b) {
		return -1
	}
	n := uint64(f.n) + number(b[pos+1:], f.width)
	if pos += 1 + int(f.width); n > uint64(len(b)-pos) { // each element takes at least one byte
		return -1
	}
	all := make([]string, n)
	for i := range all {
		if pos >= len(b) {
			return -1
		}
		body, end := bytesAt(b, pos)
		if end < 0 {
			return -1
		}
		all[i], pos = string(body), end
	}
	*to = all
	return pos
}

// appendPlanned appends the encoding of v to dst if v is a pointer to a struct that has a plan.
// Otherwise it returns false.
func (t *typeFacts) appendPlanned(dst []byte, v any) ([]byte, bool) {
	if t.plan == nil {
		return dst, false
	}
	to := reflect.ValueOf(v)
	if to.IsNil() {
		return dst, false
	}
	return t.plan.append(dst, to.Elem()), true
}

// decodePlanned decodes b into v if v is a pointer to a struct with a plan that matches b. If
// decodePlanned returns true, b contains all fields of v and no others.
func decodePlanned(b []byte, v any) bool {
	if v == nil || len(b) == 0 {
		return false
	}
	p := factsOf(reflect.TypeOf(v)).plan
	if p == nil || b[0] != p.begin {
		return false
	}
	to := reflect.ValueOf(v)
	return !to.IsNil() && p.decode(b, to.Elem())
}

// DecodeSent calls Decode and, if that succeeds, CheckUnknown.
func (c packer) DecodeSent(b []byte, v any) error {
	if decodePlain(b, v) || decodePlanned(b, v) {
		return nil
	}
	err := decodeReflected(b, v)
	if err == nil {
		err = c.CheckUnknown(b, v)
	}
	return err
}

// DecodeAnswered calls Decode and, if that succeeds, CheckMissing.
func (c packer) DecodeAnswered(b []byte, v any) error {
	if decodePlain(b, v) || decodePlanned(b, v) {
		return nil
	}
	err := decodeReflected(b, v)
	if err == nil {
		err = c.CheckMissing(b, v)
	}
	return err
}
