package typed

import (
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
)

// TestMistakes checks that an error names the place, the value there, and the wanted type.
func TestMistakes(t *testing.T) {
	m, err := Parse("{Name string, Inner {Sizes []int8, At time.Time, Wait time.Duration}, By map[uint8]bool, Level slog.Level(text), Tree kv.Tree, Body Source} -> int64")
	require.NoError(t, err)
	for text, want := range map[string]string{
		`7`:                               `the number 7 is not a valid object`,
		`{"name": "a"}`:                   `unknown field "name"; the fields are Name, Inner, By, Level, Tree, Body`,
		`{"Inner": {"Sizes": [1, "x"]}}`:  `Inner.Sizes[1]: the string "x" is not a valid int8`,
		`{"Inner": {"Sizes": [128]}}`:     `Inner.Sizes[0]: the number 128 is not a valid int8`,
		`{"Inner": {"Sizes": 1}}`:         `Inner.Sizes: the number 1 is not a valid array`,
		`{"Inner": {"Size": 1}}`:          `Inner: unknown field "Size"; the fields are Sizes, At, Wait`,
		`{"Inner": {"At": 5}}`:            `Inner.At: the number 5 is not a valid time.Time`,
		`{"Inner": {"Wait": "soon"}}`:     `Inner.Wait: the string "soon" is not a valid duration`,
		`{"Inner": {"Wait": 1.5}}`:        `Inner.Wait: the number 1.5 is not a valid int64`,
		`{"By": {"300": true}}`:           `By: the name "300" is not a valid uint8`,
		`{"By": {"3": 1}}`:                `By.3: the number 1 is not a valid bool`,
		`{"Level": 4}`:                    `Level: the number 4 is not a valid string`,
		`{"Body": "x"}`:                   `Body: the field is a Source`,
		`{"Tree": {"a": {"$bytes": 7}}}`:  `Tree.a: want one of {"$bytes": BASE64}`,
		`{"Tree": [{"$map": [[1,2,3]]}]}`: `Tree[0]: want one of`,
	} {
		v, err := Read([]byte(text))
		require.NoError(t, err)
		_, err = FromJSON(m.In, v)
		require.ErrorContains(t, err, want, text)
		require.True(t, strings.HasPrefix(err.Error(), want), "%s: %v", text, err)
	}
}

// TestFree checks that a value without a known type is the same after it has been converted by the
// codec and by JSON.
func TestFree(t *testing.T) {
	for _, text := range []string{
		`null`, `true`, `-5`, `18446744073709551615`, `2.0`, `0.1`, `"x"`, `[]`, `{}`, `{"a":[1,{"b":null}]}`, `{"$bytes":"AP8="}`,
		`{"$time":"2026-01-02T03:04:05.000000006Z"}`, `{"$float":"NaN"}`, `{"$float":"-Inf"}`, `{"$map":[[1,"a"],[{"$bytes":""},{}]]}`, `{"$map":[["$a",1]]}`,
	} {
		v, err := Read([]byte(text))
		require.NoError(t, err)
		in, err := FromJSON(freeType, v)
		require.NoError(t, err)
		b, err := codec.Msgpack.Append(nil, in.Interface())
		require.NoError(t, err)
		var out Free
		require.NoError(t, codec.Msgpack.Decode(b, &out), text)
		got, err := ToJSON(out)
		require.NoError(t, err)
		require.Equal(t, text, got)
	}
}

func TestParse(t *testing.T) {
	for _, shape := range []string{"", "{", "{a}", "{a int", "{a int,b int}", "{a int, a int}", "[int", "[x]int", "map[int", "int ->", "int int", "{` int}", strings.Repeat("[]", 200) + "int"} {
		m, err := Parse(shape)
		require.Error(t, err, shape)
		require.Equal(t, Unknown, m)
	}
	m, err := Parse("{A {S Source, T Sink}, S Source} -> any")
	require.NoError(t, err)
	require.Equal(t, []Field{{"A.S", []int{0, 0}}, {"S", []int{1}}}, m.Sources())
	require.Equal(t, []Field{{"A.T", []int{0, 1}}}, m.Sinks())
}

// FuzzParse checks that a shape from a peer is refused, or its types can be sent and printed.
func FuzzParse(f *testing.F) {
	f.Add("{Name string, In {At time.Time, M map[int]*[]uint8, L a.B(text)}, Body Source} -> *big.Int(text)")
	f.Add("[3]map[bool]{a,b any}")
	f.Add("{a' int, \x00 any}")
	f.Fuzz(func(t *testing.T, shape string) {
		if len(shape) > 1000 {
			return
		}
		m, err := Parse(shape)
		if err != nil {
			return
		}
		if _, err := ToJSON(reflect.New(m.Out).Interface()); err != nil {
			t.Fatal(err)
		}
		for _, typ := range []reflect.Type{m.In, m.Out} {
			if len(findFields(typ, sourceType, Field{}))+len(findFields(typ, sinkType, Field{})) > 0 {
				continue // are encoded within a call only
			}
			b, err := codec.Msgpack.Append(nil, reflect.New(typ).Interface())
			if err == nil {
				_, err = codec.Msgpack.Append(nil, reflect.New(typ).Interface())
			}
			if err == nil && len(b) > 0 {
				err = codec.Msgpack.Decode(b, reflect.New(typ).Interface())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	})
}
