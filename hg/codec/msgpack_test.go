package codec_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
)

type point struct {
	X, Y int
	Name string `msgpack:"n,omitempty"`
}

type everything struct {
	B     bool
	I8    int8
	I64   int64
	U     uint32
	F     float64
	S     string
	Bin   []byte
	T     time.Time
	D     time.Duration
	P     *point
	List  []point
	Arr   [3]int16
	Map   map[string]point
	ByInt map[int]string
	Any   any
	Raw   msgpack.RawMessage
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	b, err := codec.Msgpack.Append(nil, v)
	require.NoError(t, err)
	return b
}

func TestMsgpackRoundTrip(t *testing.T) {
	require.Equal(t, "msgpack", codec.Msgpack.Name())
	in := everything{
		B: true, I8: -5, I64: 1 << 40, U: 7, F: 1.5, S: "text", Bin: []byte{1, 2}, T: time.Unix(12, 34), D: time.Second,
		P: &point{X: 1}, List: []point{{Y: 2, Name: "n"}, {}}, Arr: [3]int16{1, 2, 3}, Map: map[string]point{"k": {X: 9}},
		ByInt: map[int]string{3: "three"}, Any: []any{int8(1), "x", nil}, Raw: msgpack.RawMessage{0x91, 0x01},
	}
	b, err := codec.Msgpack.Append([]byte("head"), &in)
	require.NoError(t, err)
	require.Equal(t, "head", string(b[:4]))
	var out everything
	require.NoError(t, codec.Msgpack.Decode(b[4:], &out))
	require.Equal(t, in, out)

	for i := range b { // the caller reuses the input
		b[i] = 0xee
	}
	require.Equal(t, in, out)
}

func TestMsgpackNothing(t *testing.T) {
	b, err := codec.Msgpack.Append([]byte("head"), nil)
	require.NoError(t, err)
	require.Equal(t, "head", string(b))
	require.NoError(t, codec.Msgpack.Decode(nil, nil))

	v := 7
	require.ErrorIs(t, codec.Msgpack.Decode(nil, &v), codec.ErrNoValue)
	require.ErrorContains(t, codec.Msgpack.Decode([]byte{}, &v), "empty input")
	require.Equal(t, 7, v)

	// A value without a destination is checked, too.
	require.NoError(t, codec.Msgpack.Decode([]byte{0x91, 0xc0}, nil))
	require.ErrorIs(t, codec.Msgpack.Decode([]byte{0x91}, nil), codec.ErrTruncated)
	require.ErrorIs(t, codec.Msgpack.Decode(nest("\x91", 33, 1), nil), codec.ErrDepth)

	// A nil pointer is a value.
	b = encode(t, (*point)(nil))
	require.Equal(t, []byte{0xc0}, b)
	p := &point{X: 1}
	require.NoError(t, codec.Msgpack.Decode(b, &p))
	require.Nil(t, p)
}

func TestMsgpackFieldsMayComeAndGo(t *testing.T) {
	b := encode(t, map[string]any{"X": 3, "Colour": []string{"red"}, "Z": nil})
	var p point
	require.NoError(t, codec.Msgpack.Decode(b, &p))
	require.Equal(t, point{X: 3}, p)
}

func TestMsgpackIsDeterministic(t *testing.T) {
	any1, str, flags := map[string]any{}, map[string]string{}, map[string]bool{}
	for i := range 20 {
		k := fmt.Sprint("k", i)
		any1[k], str[k], flags[k] = i, k, true
	}
	v := []any{any1, str, flags}
	first := encode(t, v)
	for range 20 {
		require.Equal(t, first, encode(t, v))
	}
}

type failingValue struct{ err error }

func (f failingValue) EncodeMsgpack(e *msgpack.Encoder) error {
	_ = e.EncodeString("part of it")
	return f.err
}

func TestMsgpackErrors(t *testing.T) {
	broken := errors.New("broken")
	b, err := codec.Msgpack.Append([]byte("head"), failingValue{broken})
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "codec_test.failingValue")
	require.Equal(t, "head", string(b))

	_, err = codec.Msgpack.Append(nil, make(chan int))
	require.ErrorContains(t, err, "chan int")

	var p point
	err = codec.Msgpack.Decode(encode(t, "a string"), &p)
	require.ErrorContains(t, err, "*codec_test.point")
	require.Error(t, codec.Msgpack.Decode([]byte{1}, p), "not a pointer")
	require.Error(t, codec.Msgpack.Decode([]byte{1}, (*point)(nil)))
	require.Error(t, codec.Msgpack.Decode([]byte{0x90}, (*[]string)(nil)))
}

// TestMsgpackPanicBecomesError checks bytes at which the decoder panics, because reflect does.
func TestMsgpackPanicBecomesError(t *testing.T) {
	var withErr struct{ Err error }
	b := encode(t, map[string]int{"Err": 1})
	require.ErrorContains(t, codec.Msgpack.Decode(b, &withErr), "panic")

	var withMap struct{ M map[any]int }
	b = unhex(t, "81 a14d 81 90 01")
	require.ErrorIs(t, codec.Msgpack.Decode(b, &withMap), codec.ErrKey)

	var p point // and the next decode is not disturbed
	require.NoError(t, codec.Msgpack.Decode(encode(t, point{X: 4}), &p))
	require.Equal(t, 4, p.X)
}

// endless nests in memory as deeply as the decoder lets it.
type endless map[string]endless

// ext8 returns an extension head for a body of n bytes.
func ext8(n byte) []byte { return []byte{0xc7, n, 0x05} }

// allocated returns the bytes that f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestMsgpackHostile(t *testing.T) {
	const million = 1 << 20 // more would take the machine down when the test fails
	claim := func(c byte, n uint32) []byte { return binary.BigEndian.AppendUint32([]byte{c}, n) }
	claims := bytes.Repeat(claim(0xdd, 1000), 25) // each array claims the same thousand bytes
	claims = append(claims, bytes.Repeat([]byte{0xc0}, 1000)...)

	inputs := []struct {
		name string
		in   []byte
	}{
		{"array", claim(0xdd, million)},
		{"map", claim(0xdf, million)},
		{"string", claim(0xdb, million)},
		{"binary", claim(0xc6, million)},
		{"extension", append(claim(0xc9, million), 0xff)},
		{"deep arrays", nest("\x91", 1<<20, 1)},
		{"deep maps", nest("\x81\xa1k", 1<<20, 1)},
		{"claims that overlap", claims},
		{"map in an extension", append(ext8(5), claim(0xdf, million)...)},
		{"map in a timestamp", append([]byte{0xd7, 0xff}, 0xde, 0xff, 0xff, 0, 0, 0, 0, 0)},
		{"map in a fixed extension", append([]byte{0xd7, 0x05}, append(claim(0xdf, million), 0, 0, 0)...)},
		{"map after an empty extension", append([]byte{0x92}, append(ext8(0), 0x80)...)},
		{"map in an extension in an array", append(append([]byte{0x91}, ext8(5)...), claim(0xdf, million)...)},
	}
	for _, c := range inputs {
		for _, dst := range []func() any{
			func() any { return new(any) },
			func() any { return new(map[string]any) },
			func() any { return new(map[string]string) },
			func() any { return new(map[int]point) },
			func() any { return new(endless) },
			func() any { return new([]any) },
			func() any { return new([]map[string]string) },
			func() any { return new([]string) },
			func() any { return new([]byte) },
			func() any { return new(string) },
			func() any { return new([]point) },
			func() any { return new(everything) },
		} {
			v := dst()
			t.Run(fmt.Sprintf("%s into %T", c.name, v), func(t *testing.T) {
				_ = codec.Msgpack.Decode(encode(t, point{}), &point{}) // caches and pools are filled
				var err error
				got := allocated(func() { err = codec.Msgpack.Decode(c.in, v) })
				if a, ok := v.(*any); !ok || *a == nil { // a timestamp may become a time in an any
					require.Error(t, err)
				}
				require.Less(t, got, uint64(64<<10+8*len(c.in)), "%v", err)
			})
		}
	}
}

// TestMsgpackEndlessBehindExtensions checks that behind empty extensions the guard counts a flat
// row of values where the decoder would nest, a level for each of them.
func TestMsgpackEndlessBehindExtensions(t *testing.T) {
	defer debug.SetMaxStack(debug.SetMaxStack(64 << 20))
	pair := append([]byte{0xa1, 'k'}, ext8(0)...)
	const levels = 1 << 20
	b := binary.BigEndian.AppendUint32([]byte{0xdf}, levels/2+1)
	b = append(b, pair...)
	b = append(b, bytes.Repeat(append([]byte{0x81}, pair...), levels)...)
	require.NoError(t, codec.Check(b, codec.MaxDepth))

	var v endless
	require.ErrorIs(t, codec.Msgpack.Decode(b, &v), codec.ErrExtension)
}

// TestMsgpackExtensions checks that an extension that is read as one is let through, before and
// after other values.
func TestMsgpackExtensions(t *testing.T) {
	type times struct {
		A, B time.Time
		M    map[string]time.Time
		Any  any
		Tail map[string]int
	}
	in := times{
		A: time.Unix(1, 0), B: time.Unix(1, 999_999_999), M: map[string]time.Time{"x": time.Unix(-1, 5)},
		Any: time.Unix(3, 3), Tail: map[string]int{"y": 1},
	}
	var out times
	require.NoError(t, codec.Msgpack.Decode(encode(t, in), &out))
	require.Equal(t, in, out)

	// Unknown to the struct, hence skipped.
	b := append([]byte{0x82, 0xa1, '?'}, append(ext8(3), 0xdf, 0xff, 0xff)...)
	b = append(b, 0xa1, 'X', 0x05)
	var p point
	require.NoError(t, codec.Msgpack.Decode(b, &p))
	require.Equal(t, 5, p.X)

	var raw msgpack.RawMessage
	require.NoError(t, codec.Msgpack.Decode(b, &raw))
	require.Equal(t, b, []byte(raw))
}

func TestMsgpackConcurrently(t *testing.T) {
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			in := point{X: i, Name: strings.Repeat("n", i*100)}
			for range 500 {
				b, err := codec.Msgpack.Append(nil, in)
				var out point
				if err == nil {
					err = codec.Msgpack.Decode(b, &out)
				}
				if err != nil || out != in {
					t.Errorf("got %v, %v, want %v", out, err, in)
					return
				}
				_ = codec.Msgpack.Decode([]byte{0x81, 0xa1, 'X', 0xa0}, &out) // a decoder that ends in the middle
			}
		})
	}
	wg.Wait()
}

func BenchmarkMsgpackDecode(b *testing.B) {
	in := encode(b, &everything{S: "text", List: make([]point, 20), Map: map[string]point{"k": {X: 9}}})
	b.SetBytes(int64(len(in)))
	b.ReportAllocs()
	for b.Loop() {
		var out everything
		if err := codec.Msgpack.Decode(in, &out); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkMsgpackDecodeUnguarded checks the same without guard and budget.
func BenchmarkMsgpackDecodeUnguarded(b *testing.B) {
	in := encode(b, &everything{S: "text", List: make([]point, 20), Map: map[string]point{"k": {X: 9}}})
	b.SetBytes(int64(len(in)))
	b.ReportAllocs()
	for b.Loop() {
		d := msgpack.GetDecoder()
		d.Reset(bytes.NewReader(in))
		var out everything
		if err := d.Decode(&out); err != nil {
			b.Fatal(err)
		}
		msgpack.PutDecoder(d)
	}
}

func BenchmarkMsgpackAppend(b *testing.B) {
	in := &everything{S: "text", List: make([]point, 20), Map: map[string]point{"k": {X: 9}}}
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		out, err := codec.Msgpack.Append(buf[:0], in)
		if err != nil {
			b.Fatal(err)
		}
		buf = out
	}
}
