package codec_test

import (
	"math/big"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
)

type (
	link  struct{ Next *link }
	ptr   *ptr
	nest1 struct {
		Name string
		Kids []nest1
	}
	omits struct {
		Next *omits
		Kids []omits `msgpack:",omitempty"`
	}
	hides struct {
		Self any `msgpack:"-"`
		N    int
	}
	row [][][]int
	own struct{ depth int }
)

func (o own) EncodeMsgpack(e *msgpack.Encoder) error {
	for range o.depth {
		if err := e.EncodeArrayLen(1); err != nil {
			return err
		}
	}
	return e.EncodeNil()
}

// chain returns links that are nested n deep.
func chain(n int) (l *link) {
	for range n {
		l = &link{l}
	}
	return l
}

// omitting returns omits that are nested n deep.
func omitting(n int) (o *omits) {
	for range n {
		o = &omits{Next: o, Kids: []omits{}}
	}
	return o
}

// TestAppendTooDeep checks that a value that contains itself, or is nested more deeply than Decode
// takes, is an error of Append that names the type: it neither ends the process nor is an error of
// the receiver.
func TestAppendTooDeep(t *testing.T) {
	self := &link{}
	self.Next = self
	var p ptr
	p = &p
	m := map[string]any{}
	m["a"] = []any{1, m}
	var a any
	a = &a
	tree := nest1{Kids: make([]nest1, 1)}
	tree.Kids[0].Kids = tree.Kids
	for name, v := range map[string]any{
		"pointer": self, "pointer to itself": p, "map": m, "interface": a, "slice": tree, "in a field": struct{ A any }{m},
		"33 links": chain(codec.MaxDepth + 1), "encodes itself": own{codec.MaxDepth + 1}, "in a slice": []any{own{codec.MaxDepth}},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := codec.Msgpack.Append([]byte("before"), v)
			require.ErrorIs(t, err, codec.ErrDepth)
			require.ErrorContains(t, err, reflect.TypeOf(v).String())
			require.ErrorContains(t, err, "32 levels")
			require.Equal(t, "before", string(b))
		})
	}
}

type twice struct{ A, B *twice }

// fork returns a value of n levels, each of which points to the next one twice, and so has 1<<n ways to its leaves.
func fork(n int) (t *twice) {
	for range n {
		t = &twice{t, t}
	}
	return t
}

// forks is fork of maps and slices.
func forks(n int) (v any) {
	for range n {
		v = map[string]any{"a": v, "b": []any{v}}
	}
	return v
}

// TestAppendTooDeepAndShared checks that a shared value is visited once for each depth, and not
// once for each path to it, which would take years.
func TestAppendTooDeepAndShared(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]any{
		"33 levels": fork(33), "40 levels": fork(40), "64 levels": fork(64), "100 levels": forks(100),
		"below 31 levels": twice{fork(31), fork(64)}, "last": []any{forks(15), forks(15), chain(33)},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := codec.Msgpack.Append(nil, v)
			require.ErrorIs(t, err, codec.ErrDepth)
		})
	}
}

// TestAppendDeep checks that every value that Append accepts, Decode accepts, to the last level.
func TestAppendDeep(t *testing.T) {
	for name, v := range map[string]any{
		"32 links": chain(codec.MaxDepth), "encodes itself": own{codec.MaxDepth}, "not encoded": hides{Self: chain(100)},
		"rows": row{{{1}}}, "a tree": nest1{Kids: []nest1{{Name: "a", Kids: make([]nest1, 100)}}},
		"omitted": omitting(codec.MaxDepth), "shared": fork(12), "shared maps": forks(8),
		"big": []any{big.NewInt(1), time.Now(), map[string]any{"a": nil}},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := codec.Msgpack.Append(nil, v)
			require.NoError(t, err)
			require.NoError(t, codec.Msgpack.Decode(b, nil))
		})
	}
	b, err := codec.Msgpack.Append(nil, chain(codec.MaxDepth))
	require.NoError(t, err)
	var back *link
	require.NoError(t, codec.Msgpack.Decode(b, &back))
	require.Equal(t, chain(codec.MaxDepth), back)
}
