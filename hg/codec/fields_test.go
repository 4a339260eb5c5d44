package codec

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFieldsOfEqualTypes checks that equal types have neither fields that are unknown nor fields
// that are missing, whatever the values, and comparing them allocates nothing.
func TestFieldsOfEqualTypes(t *testing.T) {
	type part struct {
		Base struct{ A int }
		List []person
		Map  map[string]*person
		Opt  *person `msgpack:",omitempty"`
		Tup  tuple
	}
	for _, v := range []any{&part{}, &part{List: make([]person, 2), Map: map[string]*person{"a": nil, "b": {}}, Opt: &person{}, Tup: tuple{A: 1}}, &struct {
		*inner
		B string
	}{}} {
		b, err := Msgpack.Append(nil, v)
		require.NoError(t, err)
		check := func() {
			require.NoError(t, packer{}.CheckUnknown(b, v))
			require.NoError(t, packer{}.CheckMissing(b, v))
		}
		check()
		require.Zero(t, testing.AllocsPerRun(10, func() {
			if (packer{}).CheckUnknown(b, v) != nil || (packer{}).CheckMissing(b, v) != nil {
				panic("refused")
			}
		}))
	}
}

// TestFieldErrors checks that the errors name the place, and match their reasons.
func TestFieldErrors(t *testing.T) {
	type row struct {
		N int
		S string
	}
	sent := struct {
		Rows []row
		More map[string]struct{ X float64 }
		Any  any
	}{[]row{{1, "a"}}, map[string]struct{ X float64 }{"k": {0.5}}, nil}
	b, err := Msgpack.Append(nil, sent)
	require.NoError(t, err)
	unknown := func(want string, v any) {
		t.Helper()
		err := packer{}.CheckUnknown(b, v)
		require.ErrorIs(t, err, ErrUnknownField)
		require.ErrorContains(t, err, "codec: "+want+" of ")
	}
	unknown("Rows", new(struct{}))
	unknown("Rows.S", new(struct{ Rows []struct{ N int } }))
	unknown("More.X", new(struct {
		Rows []row
		More map[string]struct{}
	}))
	require.NoError(t, packer{}.CheckUnknown(b, new(struct {
		Rows []row
		More any
	})), "nil is empty")
	missing := func(want string, v any) {
		t.Helper()
		err := packer{}.CheckMissing(b, v)
		require.ErrorIs(t, err, ErrMissingField)
		require.ErrorContains(t, err, "codec: "+want+" of ")
	}
	missing("Other", new(struct{ Other []int }))
	missing("Rows.Other", new(struct {
		Rows []struct {
			N     int
			Other bool
		}
	}))
	missing("Any", new(struct{ Any string }))
	require.NoError(t, packer{}.CheckMissing(b, new(struct {
		Rows  []struct{ N int }
		Other *int
		Left  int `msgpack:",omitempty"`
	})))
}

func BenchmarkFields(b *testing.B) {
	type in struct {
		Name  string
		Count int
		Tags  []string
		At    int64
	}
	v := &in{"name", 7, []string{"a", "b"}, 9}
	bytes, err := Msgpack.Append(nil, v)
	require.NoError(b, err)
	b.Run("Decode", func(b *testing.B) {
		for b.Loop() {
			_ = Msgpack.Decode(bytes, new(in))
		}
	})
	b.Run("Check", func(b *testing.B) {
		for b.Loop() {
			_ = packer{}.CheckMissing(bytes, v)
		}
	})
}

// TestSameFields checks that a message of the receiver's own type is compared with its names, and
// with nothing else.
func TestSameFields(t *testing.T) {
	t.Parallel()
	type flat struct {
		A int64
		B []byte
		C string
	}
	encode := func(v any) []byte {
		b, err := Msgpack.Append(nil, v)
		require.NoError(t, err)
		return b
	}
	s := shapeOf(&flat{})
	require.True(t, s.hasSameFields(encode(flat{A: 1 << 40, B: []byte("b"), C: "c"})))
	for what, b := range map[string][]byte{
		"nil":         encode(flat{}),
		"empty":       nil,
		"fewer":       encode(struct{ A int }{1}),
		"more":        encode(struct{ A, B, C, D int }{1, 2, 3, 4}),
		"other order": encode(struct{ B, A, C int }{1, 2, 3}),
		"other name":  encode(struct{ A, B, Cc int }{1, 2, 3}),
		"no struct":   encode([]int{1, 2, 3}),
		"cut":         encode(map[string]int{"A": 1, "B": 2}),
	} {
		require.False(t, s.hasSameFields(b), what)
	}
	for what, v := range map[string]any{
		"pointer": &struct{ A *int }{}, "struct": &struct{ A struct{ B int } }{}, "slice": &struct{ A []string }{}, "array": &struct{ A [2]byte }{},
		"map": &struct{ A map[string]int }{}, "no field": &struct{}{}, "text": new(string),
	} {
		require.Empty(t, shapeOf(v).flat, what)
	}
}
