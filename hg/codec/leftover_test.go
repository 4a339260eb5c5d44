package codec_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
)

type leftoverInner struct{ Names []string }

type leftoverOuter struct {
	Names []string
	Any   any
	Byte  []byte
	Inner leftoverInner
	To    *leftoverInner
	Two   [2]any
	Each  []any
	Next  *leftoverOuter
}

// TestLeftovers checks that the decoded value does not depend on the earlier contents of the
// destination: lists of strings and what is behind an interface. A []byte keeps its memory, and a
// pointer in an interface is decoded into.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	full := func(next *leftoverOuter) leftoverOuter {
		names := []string{"a", "b"}
		return leftoverOuter{names, "text", []byte("bytes"), leftoverInner{names}, &leftoverInner{names}, [2]any{int8(1), "x"}, []any{"y", int8(2)}, next}
	}
	var deep *leftoverOuter
	for range 10 {
		v := full(deep)
		deep = &v
	}
	cases := []leftoverOuter{{}, full(nil), *deep, {To: &leftoverInner{}, Any: int8(3)}, {Names: []string{}, Next: &leftoverOuter{}}}
	encoded := func(v any) []byte {
		b, err := codec.Msgpack.Append(nil, v)
		require.NoError(t, err)
		return b
	}
	for i := range cases {
		for j := range cases {
			var into, want leftoverOuter
			require.NoError(t, codec.Msgpack.Decode(encoded(&cases[i]), &into))
			require.NoError(t, codec.Msgpack.Decode(encoded(&cases[j]), &want))
			require.NoError(t, codec.Msgpack.Decode(encoded(&cases[j]), &into), "%d after %d", j, i)
			require.Equal(t, encoded(&want), encoded(&into), "%d after %d", j, i)
			require.Equal(t, want.Names == nil, into.Names == nil)
		}
	}
	var top any = "text"
	require.NoError(t, codec.Msgpack.Decode(encoded(7), &top))
	require.EqualValues(t, 7, top)
	inner := &leftoverInner{}
	top = inner
	require.NoError(t, codec.Msgpack.Decode(encoded(leftoverInner{[]string{"in"}}), &top))
	require.Equal(t, []string{"in"}, inner.Names)
	names := []string{"old"}
	require.NoError(t, codec.Msgpack.Decode(encoded([]string(nil)), &names))
	require.Nil(t, names)
	ring := &leftoverOuter{Any: 1}
	ring.Next = ring
	require.NoError(t, codec.Msgpack.Decode(encoded(&leftoverOuter{Any: "end"}), ring))
	require.Equal(t, "end", ring.Any)
	require.Nil(t, ring.Next)
}
