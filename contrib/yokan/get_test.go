package yokan_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/contrib/yokan"
)

// TestGetCalls checks that a small value takes one call, a longer one three, and nothing is
// requested twice.
func TestGetCalls(t *testing.T) {
	d, db := openDouble[head010](t, yokan.Config{})
	ctx := testContext(t)
	small, long := []byte("small"), []byte("long")
	require.NoError(t, db.PutMulti(ctx, []yokan.Pair{{Key: small, Value: make([]byte, 3000)}, {Key: long, Value: make([]byte, 3100)}}))
	require.Equal(t, map[string]int{"yk_exists_direct": 1, "yk_put": 1}, d.takeCalls())
	_, err := db.Get(ctx, small)
	require.NoError(t, err)
	require.Equal(t, map[string]int{"yk_get_direct": 1}, d.takeCalls())
	value, err := db.Get(ctx, long)
	require.NoError(t, err)
	require.Len(t, value, 3100)
	require.Equal(t, map[string]int{"yk_get_direct": 1, "yk_length_direct": 1, "yk_get": 1}, d.takeCalls())
	value, err = db.With(yokan.Consume).Get(ctx, small)
	require.NoError(t, err)
	require.Len(t, value, 3000)
	require.Equal(t, map[string]int{"yk_length_direct": 1, "yk_get_direct": 1}, d.takeCalls(), "the length is requested first")
	_, err = db.With(yokan.Consume).Get(ctx, small)
	require.ErrorIs(t, err, yokan.ErrKeyNotFound)
	require.Equal(t, map[string]int{"yk_length_direct": 1}, d.takeCalls(), "and nothing else of what is not there")
}

// TestGetGrows checks that a value that grows between the answers is requested again, but not
// without end, and not if it has been erased.
func TestGetGrows(t *testing.T) {
	d, db := openDouble[head010](t, yokan.Config{})
	ctx := testContext(t)
	key := []byte("k")
	require.NoError(t, db.Put(ctx, key, make([]byte, 5000)))
	grow := func(times int) {
		d.forgeWith(func(rpc string, _ *reply) {
			if rpc == "yk_length_direct" && times > 0 {
				times--
				d.data["k"] = append(d.data["k"], 1)
			}
		})
	}
	grow(3)
	value, err := db.Get(ctx, key)
	require.NoError(t, err)
	require.Len(t, value, 5003)
	require.Equal(t, 4, d.takeCalls()["yk_length_direct"])
	grow(1 << 30)
	_, err = db.Get(ctx, key)
	require.ErrorIs(t, err, yokan.ErrBufferSize)
	require.ErrorContains(t, err, "grew during each attempt")
	require.Equal(t, 7, d.takeCalls()["yk_length_direct"])
	grow(1)
	_, err = db.With(yokan.Consume).Get(ctx, key)
	require.ErrorIs(t, err, yokan.ErrBufferSize)
	require.ErrorContains(t, err, "the service erased them")
	require.Zero(t, d.takeCalls()["yk_put"])
}

// TestGetMaxBytes checks that values up to Config.MaxBytes are read, and no longer ones, whatever
// the provider announces.
func TestGetMaxBytes(t *testing.T) {
	d, db := openDouble[head010](t, yokan.Config{MaxBytes: 10_000})
	ctx := testContext(t)
	keys := [][]byte{[]byte("a"), []byte("b")}
	require.NoError(t, db.PutMulti(ctx, []yokan.Pair{{Key: keys[0], Value: make([]byte, 5000)}, {Key: keys[1], Value: make([]byte, 5000)}}))
	values, err := db.GetMulti(ctx, keys)
	require.NoError(t, err)
	require.Len(t, values, 2)
	require.NoError(t, db.With(yokan.Append).Put(ctx, keys[1], []byte{0}))
	_, err = db.GetMulti(ctx, keys)
	require.ErrorIs(t, err, yokan.ErrBufferSize)
	require.ErrorContains(t, err, "the value of key 1 has 5001 bytes, after 5000 bytes of other values; Config.MaxBytes is 10000")
	d.forgeWith(func(rpc string, r *reply) {
		if rpc == "yk_length_direct" {
			r.sizes[0] = []uint64{1<<63 - 1, 1<<63 - 1}
		}
	})
	_, err = db.GetMulti(ctx, keys)
	require.ErrorIs(t, err, yokan.ErrBufferSize)
}

// TestGetEachArguments checks that there is a buffer for each key.
func TestGetEachArguments(t *testing.T) {
	_, db := openDouble[head010](t, yokan.Config{})
	ctx := testContext(t)
	_, err := db.GetEach(ctx, [][]byte{[]byte("k")}, nil)
	require.ErrorIs(t, err, yokan.ErrInvalidArgs)
	_, err = db.GetEach(ctx, [][]byte{[]byte("k"), nil}, [][]byte{nil, nil})
	require.ErrorIs(t, err, yokan.ErrInvalidArgs)
	values, err := db.GetEach(ctx, nil, nil)
	require.NoError(t, err)
	require.Empty(t, values)
	values, err = db.GetEach(ctx, [][]byte{[]byte("a"), []byte("b")}, [][]byte{nil, nil}) // no room at all
	require.NoError(t, err)
	require.Equal(t, []yokan.Value{{Err: yokan.ErrKeyNotFound}, {Err: yokan.ErrKeyNotFound}}, values)
}

// TestGetPackedOwnership checks that values are parts of the caller's buffer, which cannot be
// appended to into each other, and bytes behind them stay.
func TestGetPackedOwnership(t *testing.T) {
	_, db := openDouble[head010](t, yokan.Config{})
	ctx := testContext(t)
	keys := [][]byte{[]byte("a"), []byte("b")}
	require.NoError(t, db.PutMulti(ctx, []yokan.Pair{{Key: keys[0], Value: []byte("one")}, {Key: keys[1], Value: []byte("two")}}))
	for _, mode := range []yokan.Mode{yokan.Direct, yokan.Bulk} {
		buf := bytes.Repeat([]byte("."), 8)
		values, err := db.With(mode).GetPacked(ctx, keys, buf)
		require.NoError(t, err)
		require.Equal(t, "onetwo..", string(buf))
		_ = append(values[0].Data, '!')
		require.Equal(t, "two", string(values[1].Data))
		values[1].Data[0] = 'T'
		require.Equal(t, "oneTwo..", string(buf))
		all, err := db.With(mode).GetMulti(ctx, keys)
		require.NoError(t, err)
		_ = append(all[0], '!')
		require.Equal(t, "two", string(all[1]))
	}
}
