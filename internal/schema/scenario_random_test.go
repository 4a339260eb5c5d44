package schema_test

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/internal/schema"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
)

// A family is a random type and later versions of it: each member is an earlier one with one change.
func makeFamily(r *rand.Rand, size int) []reflect.Type {
	all := []reflect.Type{randomStruct(r, 2)}
	for len(all) < size {
		if t := changeType(r, all[r.IntN(len(all))], 2); codec.Msgpack.(codec.TypeChecker).CheckType(t) == nil {
			all = append(all, t)
		}
	}
	return all
}

var scalarTypes = []reflect.Type{
	reflect.TypeFor[bool](), reflect.TypeFor[string](), reflect.TypeFor[[]byte](), reflect.TypeFor[[3]byte](), reflect.TypeFor[any](),
	reflect.TypeFor[int8](), reflect.TypeFor[int16](), reflect.TypeFor[int32](), reflect.TypeFor[int64](), reflect.TypeFor[int](),
	reflect.TypeFor[uint8](), reflect.TypeFor[uint16](), reflect.TypeFor[uint32](), reflect.TypeFor[uint64](),
	reflect.TypeFor[float32](), reflect.TypeFor[float64](),
}

func randomType(r *rand.Rand, depth int) reflect.Type {
	if depth == 0 || r.IntN(2) == 0 {
		return scalarTypes[r.IntN(len(scalarTypes))]
	}
	switch r.IntN(6) {
	case 0:
		return reflect.PointerTo(randomType(r, depth-1))
	case 1:
		return reflect.SliceOf(randomType(r, depth-1))
	case 2:
		return reflect.ArrayOf(r.IntN(3), randomType(r, depth-1))
	case 3:
		return reflect.MapOf(reflect.TypeFor[string](), randomType(r, depth-1))
	case 4:
		return reflect.MapOf(reflect.TypeFor[int32](), randomType(r, depth-1))
	}
	return randomStruct(r, depth-1)
}

var fieldNames = []string{"Alpha", "Beta", "Gamma", "Delta", "Epsilon"}

func randomField(r *rand.Rand, name string, depth int) reflect.StructField {
	f := reflect.StructField{Name: name, Type: randomType(r, depth)}
	if r.IntN(5) == 0 {
		f.Tag = `msgpack:",omitempty"`
	}
	return f
}

func randomStruct(r *rand.Rand, depth int) reflect.Type {
	var fields []reflect.StructField
	for _, name := range fieldNames {
		if r.IntN(2) == 0 {
			fields = append(fields, randomField(r, name, depth))
		}
	}
	return reflect.StructOf(fields)
}

// changeType makes one change in t, or further down.
func changeType(r *rand.Rand, t reflect.Type, depth int) reflect.Type {
	if t.Kind() == reflect.Struct && r.IntN(8) > 0 {
		return changeStruct(r, t, depth)
	}
	switch r.IntN(6) {
	case 0:
		return randomType(r, depth)
	case 1:
		return reflect.PointerTo(t)
	case 2:
		if t.Kind() == reflect.Pointer {
			return t.Elem()
		}
	case 3:
		if t.Kind() == reflect.Slice {
			return reflect.ArrayOf(r.IntN(3), t.Elem())
		}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return reflect.PointerTo(changeType(r, t.Elem(), depth))
	case reflect.Slice:
		return reflect.SliceOf(changeType(r, t.Elem(), depth))
	case reflect.Array:
		return reflect.ArrayOf(t.Len()+r.IntN(2), t.Elem())
	case reflect.Map:
		return reflect.MapOf(t.Key(), changeType(r, t.Elem(), depth))
	}
	return scalarTypes[r.IntN(len(scalarTypes))]
}

func changeStruct(r *rand.Rand, t reflect.Type, depth int) reflect.Type {
	var fields []reflect.StructField
	for i := range t.NumField() {
		fields = append(fields, t.Field(i))
	}
	has := func(name string) bool {
		return slices.ContainsFunc(fields, func(f reflect.StructField) bool { return f.Name == name })
	}
	name, i := fieldNames[r.IntN(len(fieldNames))], r.IntN(len(fields)+1)
	switch change := r.IntN(5); {
	case change == 0 && !has(name):
		fields = slices.Insert(fields, i, randomField(r, name, depth))
	case i == len(fields):
	case change == 1:
		fields = slices.Delete(fields, i, i+1)
	case change == 2 && !has(name):
		fields[i].Name = name
	case change == 3:
		fields[i].Tag = map[reflect.StructTag]reflect.StructTag{"": `msgpack:",omitempty"`}[fields[i].Tag]
	default:
		fields[i].Type = changeType(r, fields[i].Type, depth)
	}
	for i := range fields {
		fields[i] = reflect.StructField{Name: fields[i].Name, Type: fields[i].Type, Tag: fields[i].Tag}
	}
	return reflect.StructOf(fields)
}

// fillRandom fills v, of which some parts stay zero.
func fillRandom(r *rand.Rand, v reflect.Value) {
	if r.IntN(4) == 0 {
		return
	}
	bits := r.Uint64() >> r.IntN(64)
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString(strings.Repeat("é", r.IntN(3)))
	case reflect.Float32, reflect.Float64:
		v.SetFloat([]float64{0, 0.5, -3, 1 << 24, 1<<24 + 1, 1e300}[r.IntN(4+v.Type().Bits()/32)])
	case reflect.Interface:
		v.Set(reflect.ValueOf([]any{int64(bits), "text", []any{true, nil}, map[string]any{"Alpha": 1.5}}[r.IntN(4)]))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		switch fillRandom(r, v.Elem()); v.Elem().Kind() {
		case reflect.Pointer, reflect.Interface, reflect.Slice, reflect.Map:
			if v.Elem().IsNil() { // which is the same as a nil pointer in a message
				v.SetZero()
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), r.IntN(4), 4))
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			fillRandom(r, v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range r.IntN(3) {
			key, elem := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			if fillRandom(r, key); key.Kind() == reflect.String && r.IntN(2) == 0 {
				key.SetString("Alpha")
			}
			fillRandom(r, elem)
			v.SetMapIndex(key, elem)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			fillRandom(r, v.Field(i))
		}
	default:
		if v.CanInt() {
			v.SetInt(int64(bits) * (1 - 2*int64(bits%2)))
		} else {
			v.SetUint(bits)
		}
	}
}

// A plain value is nil, a bool, a *big.Float, a string (of bytes, too), a []any, or a map[string]any with the keys as text.
func plainValue(v reflect.Value) any {
	switch v.Kind() {
	case reflect.Invalid:
		return nil
	case reflect.Bool:
		return v.Bool()
	case reflect.String:
		return v.String()
	case reflect.Float32, reflect.Float64:
		return big.NewFloat(v.Float())
	case reflect.Pointer, reflect.Interface:
		return plainValue(v.Elem())
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			b := make([]byte, v.Len())
			reflect.Copy(reflect.ValueOf(b), v)
			return string(b)
		}
		all := make([]any, v.Len())
		for i := range all {
			all[i] = plainValue(v.Index(i))
		}
		return all
	case reflect.Map:
		all := map[string]any{}
		for it := v.MapRange(); it.Next(); {
			all[fmt.Sprint(it.Key())] = plainValue(it.Value())
		}
		return all
	case reflect.Struct:
		all := map[string]any{}
		for i := range v.NumField() {
			all[v.Type().Field(i).Name] = plainValue(v.Field(i))
		}
		return all
	}
	if v.CanInt() {
		return new(big.Float).SetInt64(v.Int())
	}
	return new(big.Float).SetUint64(v.Uint())
}

// isNothing reports whether a plain value, and all in it, is zero.
func isNothing(p any) bool {
	switch p := p.(type) {
	case nil:
		return true
	case bool:
		return !p
	case string:
		return strings.Trim(p, "\x00") == ""
	case *big.Float:
		return p.Sign() == 0
	case []any:
		return !slices.ContainsFunc(p, func(e any) bool { return !isNothing(e) })
	}
	for _, e := range p.(map[string]any) {
		if !isNothing(e) {
			return false
		}
	}
	return true
}

// hasArrived reports whether a target has all that a caller has sent, and nothing that it has not.
func hasArrived(sent, got any) bool {
	if isNothing(sent) || got == nil {
		return isNothing(sent) && isNothing(got)
	}
	switch s := sent.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		for k, e := range s {
			if there, ok := g[k]; ok && !hasArrived(e, there) || !ok && !isNothing(e) {
				return false
			}
		}
		for k, e := range g {
			if _, ok := s[k]; !ok && !isNothing(e) {
				return false
			}
		}
		return ok || isNothing(got)
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) < len(s) {
			return false
		}
		for i := range s {
			if !hasArrived(s[i], g[i]) {
				return false
			}
		}
		return isNothing(g[len(s):])
	case string:
		g, ok := got.(string)
		return ok && strings.HasPrefix(g, s) && isNothing(g[len(s):])
	case *big.Float:
		g, ok := got.(*big.Float)
		return ok && s.Cmp(g) == 0
	}
	return sent == got
}

// isAnswered reports whether every field that the caller reads in got has the value that the target has answered, and is nil if that has
// not sent it. A field may be left out because it is empty if its tag allows that.
func isAnswered(answer any, got reflect.Value, mayBeNil bool) bool {
	if list, ok := answer.([]any); answer == nil || ok && len(list) == 0 && got.Kind() == reflect.Struct { // as good as nil to a struct
		switch got.Kind() {
		case reflect.Pointer, reflect.Interface, reflect.Slice, reflect.Map:
			return got.IsNil()
		case reflect.Struct:
			for i := range got.NumField() {
				if !canBeMissing(got.Type().Field(i)) {
					return mayBeNil
				}
			}
			return true
		}
		return mayBeNil && got.IsZero()
	}
	switch got.Kind() {
	case reflect.Pointer:
		return !got.IsNil() && isAnswered(answer, got.Elem(), false)
	case reflect.Interface:
		return hasArrived(answer, plainValue(got)) && hasArrived(plainValue(got), answer)
	case reflect.Struct:
		a, ok := answer.(map[string]any)
		for i := range got.NumField() {
			f := got.Type().Field(i)
			e, wasSent := a[f.Name]
			if !wasSent && (!canBeMissing(f) || !got.Field(i).IsZero()) || wasSent && !isAnswered(e, got.Field(i), canBeMissing(f)) {
				return false
			}
		}
		return ok
	case reflect.Map:
		a, ok := answer.(map[string]any)
		for it := got.MapRange(); it.Next(); {
			if e, wasSent := a[fmt.Sprint(it.Key())]; !wasSent || !isAnswered(e, it.Value(), false) {
				return false
			}
		}
		return ok && len(a) == got.Len()
	case reflect.Slice, reflect.Array:
		a, ok := answer.([]any)
		if !ok { // bytes
			return answer == plainValue(got)
		}
		for i := range min(len(a), got.Len()) {
			if !isAnswered(a[i], got.Index(i), false) {
				return false
			}
		}
		return len(a) == got.Len()
	}
	return hasArrived(answer, plainValue(got)) && hasArrived(plainValue(got), answer)
}

func canBeMissing(f reflect.StructField) bool {
	return f.Tag != "" || f.Type.Kind() == reflect.Pointer || f.Type.Kind() == reflect.Interface
}

// leftOut returns a plain value of type t without what its tags leave out of a message.
func leftOut(t reflect.Type, v reflect.Value) any {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return nil
		}
		return leftOut(v.Elem().Type(), v.Elem())
	case reflect.Slice, reflect.Map:
		if v.IsNil() {
			return nil
		}
	}
	p := plainValue(v)
	switch p := p.(type) {
	case []any:
		for i := range p {
			p[i] = leftOut(t.Elem(), v.Index(i))
		}
	case map[string]any:
		if v.Kind() == reflect.Map {
			for it := v.MapRange(); it.Next(); {
				p[fmt.Sprint(it.Key())] = leftOut(t.Elem(), it.Value())
			}
			break
		}
		for i := range t.NumField() {
			f := t.Field(i)
			e := leftOut(f.Type, v.Field(i))
			if p[f.Name] = e; f.Tag != "" && isEmptied(e) && (f.Type.Kind() != reflect.Pointer || v.Field(i).IsNil()) {
				delete(p, f.Name)
			}
		}
	}
	return p
}

// isEmptied reports whether omitempty leaves out a value of which the parts that it leaves out are gone.
func isEmptied(p any) bool {
	switch p := p.(type) {
	case string:
		return p == ""
	case []any:
		return len(p) == 0
	case map[string]any:
		return len(p) == 0
	}
	return isNothing(p)
}

var aName = regexp.MustCompile(`\b(Alpha|Beta|Gamma|Delta|Epsilon)\b`)

// TestRandomTypes checks that for random pairs of types, one of which may be an earlier version of
// the other, the other side reads the values that were sent and answered, or an error names a
// field. Pairs that Compare finds compatible have no error at all.
func TestRandomTypes(t *testing.T) {
	t.Parallel()
	families, values := long.Or(12, 400), long.Or(2, 4) // families of 16 × 16 pairs
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	arrived, refused, quiet := 0, 0, 0
	for n := range families {
		r := rand.New(rand.NewPCG(seed, uint64(n)))
		types := makeFamily(r, 16)
		for _, from := range types {
			for _, to := range types {
				broken := brokenPeers(t, from, to)
				for range values {
					v := reflect.New(from)
					fillRandom(r, v.Elem())
					b, err := codec.Msgpack.Append(nil, v.Interface())
					require.NoError(t, err)
					what := fmt.Sprintf("seed %d, family %d: %v of %#v into %v", seed, n, v.Elem(), v.Elem(), to)

					got := reflect.New(to)
					if err = decode(b, got.Interface(), checker.CheckUnknown); err == nil {
						require.True(t, hasArrived(plainValue(v), plainValue(got)), "sent: %s: %+v", what, got.Elem())
						arrived++
					} else {
						requireNamed(t, err, from, to)
						require.Contains(t, broken, "old clients: in", "%s: %v", what, err)
						refused++
					}
					got = reflect.New(to)
					if err = decode(b, got.Interface(), checker.CheckMissing); err == nil {
						require.True(t, isAnswered(leftOut(from, v.Elem()), got.Elem(), false), "answered: %s: %+v", what, got.Elem())
						arrived++
					} else {
						requireNamed(t, err, from, to)
						require.Contains(t, broken, "old servers: out", "%s: %v", what, err)
						refused++
					}
				}
				if len(broken) == 0 {
					quiet++
				}
			}
		}
	}
	t.Logf("%d pairs: %d values arrived, %d were refused; Compare was silent for %d pairs", families*256, arrived, refused, quiet)
	require.Greater(t, arrived, refused/20)
	require.NotZero(t, refused)
	require.Greater(t, quiet, families*16, "types that are not the same")
}

var checker = codec.Msgpack.(codec.FieldChecker)

// decode decodes a caller's input, or a target's answer, as package qs does.
func decode(b []byte, v any, check func(b []byte, v any) error) error {
	if err := codec.Msgpack.Decode(b, v); err != nil {
		return err
	}
	return check(b, v)
}

// requireNamed fails unless an error names a field, or one of the types is no struct, and the error names that.
func requireNamed(t *testing.T, err error, from, to reflect.Type) {
	t.Helper()
	if from.Kind() == reflect.Struct && to.Kind() == reflect.Struct {
		require.Regexp(t, aName, err.Error(), "%v into %v", from, to)
		return
	}
	require.Contains(t, err.Error(), to.String())
}

// brokenPeers returns the old peers that see a break, and which, when a type was old and is now.
func brokenPeers(t *testing.T, old, now reflect.Type) (broken string) {
	of := func(t reflect.Type) schema.Program {
		signature := schema.Signature{Kind: schema.Plain, In: schema.Of(t), Out: schema.Of(t)}
		return schema.Program{Methods: []schema.Method{{Name: "m", Codec: "msgpack", Signature: signature}}}
	}
	before, err := schema.ParseProgram(schema.Format(of(old)))
	require.NoError(t, err)
	for _, b := range schema.Compare(before, of(now)) {
		for _, peers := range b.Peers {
			who, _, _ := strings.Cut(peers, ",")
			broken += who + ": " + b.Change + "\n"
		}
	}
	return broken
}
