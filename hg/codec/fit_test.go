package codec

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"
)

type (
	person struct {
		Name    string
		Age     int
		Tags    []string
		Friends []person
		Photo   []byte
		Score   float32
		Extra   map[string]any
		Best    *person
		ID      [4]byte
		Pos     [2]float64
		OK      bool
	}
	tuple struct {
		_msgpack struct{} `msgpack:",as_array"` //lint:ignore U1000 read by msgpack
		A        int
		B        []string
	}
)

// destinations are types into which hostile bytes are decoded.
var destinations = []reflect.Type{
	reflect.TypeFor[any](), reflect.TypeFor[[]any](), reflect.TypeFor[map[string]any](), reflect.TypeFor[map[any]any](),
	reflect.TypeFor[[]string](), reflect.TypeFor[[][]byte](), reflect.TypeFor[[]int64](), reflect.TypeFor[[]float32](),
	reflect.TypeFor[[]float64](), reflect.TypeFor[[]bool](), reflect.TypeFor[[]uint8](), reflect.TypeFor[[][]int](),
	reflect.TypeFor[[]*string](), reflect.TypeFor[[]map[string]string](), reflect.TypeFor[map[int]string](),
	reflect.TypeFor[map[string]bool](), reflect.TypeFor[[][4]byte](), reflect.TypeFor[[][2]int](), reflect.TypeFor[[]error](),
	reflect.TypeFor[person](), reflect.TypeFor[[]person](), reflect.TypeFor[tuple](), reflect.TypeFor[[]tuple](),
	reflect.TypeFor[map[string][]tuple](), reflect.TypeFor[[300]int](), reflect.TypeFor[[][300]int](), reflect.TypeFor[[][400]int](), reflect.TypeFor[string](),
}

// decodeCost returns how Decode of b into a new value of type t ends, and the bytes that it allocates, the value itself apart. It
// tries again when these are more than limit: others may allocate at the same time, and the race detector takes spare decoders
// away at random.
func decodeCost(b []byte, t reflect.Type, limit uint64) (least uint64, err error) {
	var before, after runtime.MemStats
	for i := range 20 {
		v := reflect.New(t).Interface()
		runtime.ReadMemStats(&before)
		err = Msgpack.Decode(b, v)
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; i == 0 || n < least {
			least = n
		}
		if err == nil || least <= limit {
			break
		}
	}
	return least, err
}

// requireCheapRefusal fails if a refusal of b costs more than was promised, or if b is refused although the decoder takes it.
func requireCheapRefusal(t *testing.T, b []byte, typ reflect.Type) error {
	t.Helper()
	s := shapeOf(reflect.New(typ).Interface())
	limit := uint64(budgetFor(len(b)))
	if s.largest > budgetFor(0)-decoderCost { // too large for one: two of them
		limit += 2 * uint64(s.largest)
	}
	n, err := decodeCost(b, typ, limit)
	if err == nil {
		return nil
	}
	if n > limit {
		t.Fatalf("%d bytes of memory for %d bytes of input that is refused, the limit is %d: into %v: %v", n, len(b), limit, typ, err)
	}
	sv, guarded := check(b, MaxDepth)
	if guarded != nil {
		return err
	}
	if s.afford(b, sv.values) == nil && decode(b, reflect.New(typ).Interface(), sv.exts) == nil {
		t.Fatalf("refused into %v, and the decoder takes it: %v", typ, err)
	}
	return err
}

// repeatedArray returns an array of n times the same element, and what follows.
func repeatedArray(n int, element []byte, last ...[]byte) []byte {
	b := binary.BigEndian.AppendUint32([]byte{0xdd}, uint32(n+len(last)))
	return append(append(b, bytes.Repeat(element, n)...), bytes.Join(last, nil)...)
}

// repeatedMap returns a map of n pairs with the same value, and one more.
func repeatedMap(n int, value []byte, key, last []byte) []byte {
	b := binary.BigEndian.AppendUint32([]byte{0xdf}, uint32(n+1))
	for i := range n {
		b = append(b, 0xa3, byte('a'+i%16), byte('a'+i/16%16), byte('a'+i/256))
		b = append(b, value...)
	}
	return append(append(b, key...), last...)
}

var values = map[string][]byte{
	"nil": {0xc0}, "number": {1}, "long number": {0xd3, 0, 0, 0, 0, 0, 0, 0, 1}, "text": []byte("\xa3abc"), "no text": {0xa0}, "binary": {0xc4, 0},
	"array": {0x90}, "map": {0x80}, "pair": {0x81, 0xa1, 'a', 1}, "pair of numbers": {0x81, 1, 1}, "nest": {0x91, 0x91, 0x90},
	"true": {0xc3}, "float": {0xca, 0, 0, 0, 0}, "double": {0xcb, 0, 0, 0, 0, 0, 0, 0, 0}, "time": {0xd6, 0xff, 0, 0, 0, 0}, "extension": {0xd4, 5, 0},
	"hollow": {0xc7, 0, 5}, "list as key": {0x81, 0x90, 1}, "binary as key": {0x81, 0xc4, 1, 'a', 1}, "person": append([]byte("\x81\xa3Age"), 0xc3),
	"friends": append([]byte("\x81\xa7Friends\x91"), 0xc0), "long array": repeatedArray(301, []byte{1}),
}

// TestRefusedCostsLittle checks that with any bytes of a hostile sender behind many valid values, a
// refused message has cost no more than 4 times the bytes, and 4 KiB.
func TestRefusedCostsLittle(t *testing.T) {
	const n = 700
	tried, refused := 0, 0
	for _, name := range []string{"nil", "number", "no text", "array", "pair", "person"} {
		v := values[name]
		for _, end := range []string{"number", "text", "array", "double", "extension", "list as key", "long array"} {
			last := values[end]
			for _, b := range [][]byte{repeatedArray(n, v, last), repeatedMap(n, v, []byte("\xa1z"), last)} {
				for _, typ := range destinations {
					sv, err := check(b, MaxDepth)
					require.NoError(t, err, name)
					s := shapeOf(reflect.New(typ).Interface())
					if sv.hollow > 0 || s.afford(b, sv.values) != nil || s.dense == 0 {
						continue // refused in front of everything, or of no interest
					}
					if Msgpack.Decode(b, reflect.New(typ).Interface()) == nil {
						continue
					}
					if tried++; tried%5 == 0 { // measuring takes long
						_ = requireCheapRefusal(t, b, typ)
						refused++
					}
				}
			}
		}
	}
	require.Greater(t, refused, 100)
}

// registeredType is a type that a program has taught the decoder.
type registeredType struct{ N int }

// TestTaughtTypes checks that a type that the program has registered with msgpack uses that
// decoder, in long messages too.
func TestTaughtTypes(t *testing.T) {
	msgpack.Register(registeredType{}, func(e *msgpack.Encoder, v reflect.Value) error {
		return e.EncodeString(string(make([]byte, v.Field(0).Int())))
	}, func(d *msgpack.Decoder, v reflect.Value) error {
		s, err := d.DecodeString()
		v.Field(0).SetInt(int64(len(s)))
		return err
	})
	in := make([]registeredType, 1000)
	in[999].N = 3
	b, err := Msgpack.Append(nil, in)
	require.NoError(t, err)
	var out []registeredType
	require.NoError(t, Msgpack.Decode(b, &out))
	require.Equal(t, in, out)
}

// FuzzFit checks that with any bytes, and any of many types, a refusal costs little, and what is
// refused the decoder refuses, too.
func FuzzFit(f *testing.F) {
	for i := range uint8(len(destinations)) {
		f.Add([]byte("\x92\x01\xc3"), i, uint8(200))
		f.Add([]byte("\x82\xa4Name\xa1x\xa4Tags\x91\x01"), i, uint8(200))
		f.Add([]byte("\x81\xa1a\xd6\xff\x00\x00\x00\x00"), i, uint8(255))
	}
	f.Fuzz(func(t *testing.T, b []byte, to, times uint8) {
		if len(b) > 4096 {
			return
		}
		typ := destinations[int(to)%len(destinations)]
		_ = requireCheapRefusal(t, b, typ)
		if check, err := check(b, MaxDepth-1); err == nil && check.values > 0 { // the same, after many that may be good
			_ = requireCheapRefusal(t, repeatedArray(int(times)*4, []byte{0xc0}, b), typ)
			_ = requireCheapRefusal(t, repeatedArray(int(times), []byte{0xa0}, b), typ)
			_ = requireCheapRefusal(t, repeatedMap(int(times), []byte{0xc0}, []byte("\xa1z"), b), typ)
		}
	})
}
