package yokan_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/contrib/yokan"
)

// TestListRoom checks that keys and values that do not fit are requested again with more room, of
// which Config.MaxBytes is the limit.
func TestListRoom(t *testing.T) {
	d, db := openDouble[head010](t, yokan.Config{MaxBytes: 200_000})
	ctx := testContext(t)
	for i := range 10 {
		require.NoError(t, db.Put(ctx, fmt.Appendf(nil, "%0500d", i), make([]byte, 10_000)))
	}
	d.takeCalls()
	pairs, err := db.ListPairs(ctx, nil, nil, 10)
	require.NoError(t, err)
	require.Len(t, pairs, 10)
	require.Len(t, pairs[9].Key, 500)
	require.Len(t, pairs[9].Value, 10_000)
	require.Equal(t, map[string]int{"yk_list_keyvals_direct": 1, "yk_list_keyvals": 4}, d.takeCalls())
	require.NoError(t, db.Put(ctx, []byte("0"), make([]byte, 100_000)))
	_, err = db.ListPairs(ctx, nil, nil, 11)
	require.ErrorIs(t, err, yokan.ErrBufferSize)
	require.ErrorContains(t, err, "list fewer at a time")
	_, err = db.ListKeys(ctx, nil, nil, 200_000/16)
	require.NoError(t, err)
	_, err = db.ListKeys(ctx, nil, nil, 200_000/16+1)
	require.ErrorIs(t, err, yokan.ErrInvalidArgs)
}

// TestListPages checks that everything is listed in pages, each from the last key of the one
// before.
func TestListPages(t *testing.T) {
	_, db := openDouble[head010](t, yokan.Config{})
	ctx := testContext(t)
	want := newPairs("k", 1000, 0)
	require.NoError(t, db.PutMulti(ctx, want))
	var all [][]byte
	var from []byte
	for {
		page, err := db.ListKeys(ctx, from, []byte("k"), 64)
		require.NoError(t, err)
		if all = append(all, page...); len(page) < 64 {
			break
		}
		from = page[63]
	}
	require.Equal(t, keysOf(want), all)
	require.True(t, bytes.Equal(want[0].Key, all[0]))
}
