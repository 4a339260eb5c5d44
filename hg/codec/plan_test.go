package codec

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
)

type (
	planText  string
	planCount int32

	planInner struct {
		X int
		Y uint8 `msgpack:"why"`
	}
	planAll struct {
		B      bool
		I      int
		I8     int8
		I16    int16
		I32    int32
		I64    int64
		U      uint
		U8     uint8
		U16    uint16
		U32    uint32
		U64    uint64 `msgpack:"sixty-four"`
		F32    float32
		S      planText
		hidden int //lint:ignore U1000 not exported, so not encoded
	}
	planLists struct {
		F64    float64
		Data   []byte
		Tags   []string `msgpack:"t"`
		Inner  planInner
		Left   string `msgpack:"-"`
		N      planCount
		Single struct{ S string }
	}
	planOmit struct {
		A int    `msgpack:",omitempty"`
		B string `msgpack:"bee,omitempty"`
		C []byte
		Z time.Time `msgpack:",omitempty"`
	}
	planOmitAll struct {
		_msgpack struct{} `msgpack:",omitempty"` //lint:ignore U1000 read by msgpack
		A        int
		B        []string
	}
	planTuple struct {
		_msgpack struct{} `msgpack:",as_array"` //lint:ignore U1000 read by msgpack
		A        int
		B        string
	}
	planTupleToo struct {
		_msgpack struct{} `msgpack:",asArray"` //lint:ignore U1000 read by msgpack
		A        int
		In       planInner
	}
	planAlias struct {
		A int `msgpack:"a,alias:before"`
		B string
	}
	planEmbeds struct {
		planInner
		Z string
	}
	planEmbedsPointer struct {
		*PlanNamed
		Z string
	}
	PlanNamed  struct{ Q int }
	planInline struct {
		PlanNamed `msgpack:",inline"`
		Z         string
	}
	planNoInline struct {
		PlanNamed `msgpack:",noinline"`
		Z         string
	}
	planOthers struct {
		T   time.Time
		D   time.Duration
		P   *planInner
		L   []planInner
		M   map[string]string // the package sorts its keys
		A   [2]int
		Any any
		S   planText
	}
	planNone struct{}
)

// planTypes are structs with all forms of tags, and the fields of all kinds.
var planTypes = []reflect.Type{
	reflect.TypeFor[planInner](), reflect.TypeFor[planAll](), reflect.TypeFor[planLists](),
	reflect.TypeFor[planOmit](), reflect.TypeFor[planOmitAll](), reflect.TypeFor[planTuple](), reflect.TypeFor[planTupleToo](),
	reflect.TypeFor[planAlias](), reflect.TypeFor[planEmbeds](), reflect.TypeFor[planEmbedsPointer](),
	reflect.TypeFor[planInline](), reflect.TypeFor[planNoInline](), reflect.TypeFor[planOthers](), reflect.TypeFor[planNone](),
}

var planLeaves = []reflect.Type{
	reflect.TypeFor[bool](), reflect.TypeFor[int](), reflect.TypeFor[int8](), reflect.TypeFor[int16](), reflect.TypeFor[int32](), reflect.TypeFor[int64](),
	reflect.TypeFor[uint](), reflect.TypeFor[uint8](), reflect.TypeFor[uint16](), reflect.TypeFor[uint32](), reflect.TypeFor[uint64](),
	reflect.TypeFor[float32](), reflect.TypeFor[float64](), reflect.TypeFor[string](), reflect.TypeFor[[]byte](), reflect.TypeFor[[]string](),
	reflect.TypeFor[planText](), reflect.TypeFor[planInner](), reflect.TypeFor[planLists](), reflect.TypeFor[time.Duration](),
}

// randomPlanType returns a struct of leaves, sometimes with other fields and with options in tags.
func randomPlanType(r *rand.Rand, depth int) reflect.Type {
	var fields []reflect.StructField
	for i := range 1 + r.IntN(maxFlat+2) {
		f := reflect.StructField{Name: fmt.Sprintf("F%d", i), Type: planLeaves[r.IntN(len(planLeaves))]}
		switch r.IntN(40) {
		case 0:
			f.Tag = `msgpack:"-"`
		case 1:
			f.Tag = `msgpack:",omitempty"`
		case 2:
			f.Tag = reflect.StructTag(fmt.Sprintf(`msgpack:"n%d,alias:a%d"`, i, i))
		case 3:
			f.Type = reflect.PointerTo(f.Type)
		case 4:
			f.Type = reflect.SliceOf(f.Type)
		case 5:
			f.Type = reflect.TypeFor[map[string]string]() // the package sorts its keys
		case 6:
			f.Type = reflect.TypeFor[any]()
		case 7, 8, 9:
			f.Tag = reflect.StructTag(fmt.Sprintf(`msgpack:"%s%d"`, strings.Repeat("n", r.IntN(40)), i))
		case 10, 11:
			if depth > 0 {
				f.Type = randomPlanType(r, depth-1)
			}
		}
		fields = append(fields, f)
	}
	return reflect.StructOf(fields)
}

// siblingOf returns t with fields of other types, mostly numbers of another size.
func siblingOf(r *rand.Rand, t reflect.Type) reflect.Type {
	var fields []reflect.StructField
	for i := range t.NumField() {
		f := t.Field(i)
		switch k := f.Type.Kind(); {
		case k >= reflect.Int && k <= reflect.Float64 && r.IntN(2) == 0:
			f.Type = planLeaves[1+r.IntN(12)]
		case r.IntN(30) == 0:
			f.Type = planLeaves[r.IntN(len(planLeaves))]
		}
		fields = append(fields, f)
	}
	return reflect.StructOf(fields)
}

// fillRandomly sets v to a random value.
func fillRandomly(r *rand.Rand, v reflect.Value) {
	number := func() int64 { return int64(r.Uint64()) >> r.IntN(64) }
	size := func() int { return []int{0, 1, 2, 15, 16, 31, 32, 255, 256}[min(r.IntN(20), 8-r.IntN(9))] }
	switch k := v.Kind(); {
	case !v.CanSet():
	case v.Type() == reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(time.Unix(int64(r.Uint32()), 0)))
	case k == reflect.Bool:
		v.SetBool(r.IntN(2) == 0)
	case v.CanInt():
		v.SetInt(number() >> (64 - v.Type().Bits()))
		if r.IntN(3) == 0 {
			v.SetInt(int64(r.IntN(256) - 128))
		}
	case v.CanUint():
		v.SetUint(uint64(number()) >> (64 - v.Type().Bits()))
	case v.CanFloat():
		v.SetFloat([]float64{0, math.Copysign(0, -1), 1.5, math.Inf(-1), r.NormFloat64()}[r.IntN(5)])
	case k == reflect.String:
		v.SetString(strings.Repeat("s", size()))
	case k == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillRandomly(r, v.Elem())
	case k == reflect.Interface:
		v.Set(reflect.ValueOf("any"))
	case k == reflect.Slice && r.IntN(5) > 0:
		n := size()
		if v.Type().Elem().Size() > 16 {
			n = min(n, 17)
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n+r.IntN(20)))
		fallthrough
	case k == reflect.Array:
		for i := range min(v.Len(), 3) {
			fillRandomly(r, v.Index(i))
		}
	case k == reflect.Map && r.IntN(5) > 0:
		v.Set(reflect.MakeMap(v.Type()))
		for range r.IntN(3) {
			key, elem := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fillRandomly(r, key)
			fillRandomly(r, elem)
			v.SetMapIndex(key, elem)
		}
	case k == reflect.Struct:
		for i := range v.NumField() {
			if r.IntN(10) > 0 {
				fillRandomly(r, v.Field(i))
			}
		}
	}
}

// TestPlanIsMsgpack: Append writes the bytes of the msgpack package, and Decode has its results and errors, for random values and
// for all forms of tags; also for damaged bytes, for those of types with other fields, and into what has a value already.
func TestPlanIsMsgpack(t *testing.T) {
	t.Parallel()
	values := long.Or(10_000, 1_000_000)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	types := append([]reflect.Type(nil), planTypes...)
	siblings := map[reflect.Type]reflect.Type{}
	planned, decoded, other := 0, 0, []byte(nil)
	for i := range values {
		if i%50 == 0 && len(types) < 2000 { // types are never freed
			typ := randomPlanType(r, 2)
			types = append(types, typ)
			siblings[typ] = siblingOf(r, typ)
		}
		typ := types[r.IntN(len(types))]
		v := reflect.New(typ)
		fillRandomly(r, v.Elem())
		var want bytes.Buffer
		e := msgpack.NewEncoder(&want)
		e.SetSortMapKeys(true)
		require.NoError(t, e.Encode(v.Interface()))
		got, err := Msgpack.Append([]byte("head"), v.Interface())
		require.NoError(t, err)
		if !bytes.Equal(want.Bytes(), got[4:]) {
			require.Equal(t, want.Bytes(), got[4:], "%+v", v.Interface())
		}

		b := got[4:]
		switch r.IntN(8) {
		case 0:
			b[r.IntN(len(b))] = byte(r.Uint32())
		case 1:
			b = b[:r.IntN(len(b))]
		case 2:
			b = append(b, byte(r.Uint32()))
		case 3:
			b, other = other, b
		case 4:
			if sibling := siblings[typ]; sibling != nil {
				typ = sibling
				v = reflect.New(typ)
			}
		}
		if factsOf(v.Type()).plan != nil {
			planned++
			if decodePlanned(b, reflect.New(typ).Interface()) {
				decoded++
			}
		}
		if typ == reflect.TypeFor[planEmbedsPointer]() {
			continue // the package starts a goroutine that never ends when it decodes into one
		}
		before := reflect.New(typ)
		if r.IntN(2) == 0 {
			fillRandomly(r, before.Elem())
		}
		compareDecoders(t, b, before)
	}
	require.Greater(t, planned, values/8, "values with a plan")
	require.Greater(t, decoded, planned/4, "messages that are decoded by it")
}

// compareDecoders requires that b decodes by the package as it does without plans, into what before points to.
func compareDecoders(t *testing.T, b []byte, before reflect.Value) {
	t.Helper()
	start, err := appendReflected(nil, before.Interface(), true)
	require.NoError(t, err)
	decoders := []struct{ got, want func(b []byte, v any) error }{
		{packer{}.Decode, decodeReflected},
		{packer{}.DecodeSent, func(b []byte, v any) error {
			if err := decodeReflected(b, v); err != nil {
				return err
			}
			return packer{}.CheckUnknown(b, v)
		}},
		{packer{}.DecodeAnswered, func(b []byte, v any) error {
			if err := decodeReflected(b, v); err != nil {
				return err
			}
			return packer{}.CheckMissing(b, v)
		}},
	}
	for i, d := range decoders {
		var (
			into [2]reflect.Value
			errs [2]error
		)
		for j, decode := range []func(b []byte, v any) error{d.got, d.want} {
			into[j] = reflect.New(before.Type().Elem())
			require.NoError(t, decodeReflected(start, into[j].Interface()))
			errs[j] = decode(b, into[j].Interface())
		}
		if errs[0] != nil || errs[1] != nil {
			require.Equal(t, fmt.Sprint(errs[1]), fmt.Sprint(errs[0]), "decoder %d, %x into %v", i, b, before.Type())
			continue
		}
		got, err := appendReflected(nil, into[0].Interface(), true)
		require.NoError(t, err)
		want, err := appendReflected(nil, into[1].Interface(), true)
		require.NoError(t, err)
		if !bytes.Equal(want, got) {
			require.Equal(t, want, got, "decoder %d, %x into %v", i, b, before.Type())
		}
	}
}

// TestPlanOfRegisteredType: a struct with a field for whose type the program has registered an encoder has no plan.
func TestPlanOfRegisteredType(t *testing.T) {
	t.Parallel()
	type registered string
	msgpack.Register(registered(""), func(e *msgpack.Encoder, v reflect.Value) error { return e.EncodeString("<" + v.String() + ">") }, nil)
	type outer struct{ R registered }
	require.Nil(t, factsOf(reflect.TypeFor[*outer]()).plan)
	b, err := Msgpack.Append(nil, &outer{"x"})
	require.NoError(t, err)
	require.Equal(t, "\x81\xa1R\xa3<x>", string(b))
}

// TestPlanOf: which types have a plan.
func TestPlanOf(t *testing.T) {
	t.Parallel()
	with := map[reflect.Type]bool{reflect.TypeFor[planInner](): true, reflect.TypeFor[planAll](): true, reflect.TypeFor[planLists](): true}
	for _, typ := range planTypes {
		require.Equal(t, with[typ], factsOf(reflect.PointerTo(typ)).plan != nil, "%v", typ)
	}
}

func BenchmarkPlan(b *testing.B) {
	v := planLists{F64: 1, Data: make([]byte, 64), Tags: []string{"one", "two"}, Inner: planInner{1, 2}, N: 3}
	buf, err := Msgpack.Append(nil, &v)
	require.NoError(b, err)
	b.Run("append", func(b *testing.B) {
		for b.Loop() {
			buf, _ = Msgpack.Append(buf[:0], &v)
		}
	})
	b.Run("append by msgpack", func(b *testing.B) {
		for b.Loop() {
			buf, _ = appendReflected(buf[:0], &v, false)
		}
	})
	var into planLists
	b.Run("decode", func(b *testing.B) {
		for b.Loop() {
			_ = packer{}.DecodeSent(buf, &into)
		}
	})
	b.Run("decode by msgpack", func(b *testing.B) {
		for b.Loop() {
			_ = decodeReflected(buf, &into)
			_ = packer{}.CheckUnknown(buf, &into)
		}
	})
}
