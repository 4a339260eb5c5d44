package yokan_test

import (
	"bytes"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/contrib/yokan"
	"github.com/quicksilver-rpc/quicksilver/mercury"
)

// ways are the ways of data: by size, in messages, and by lent memory.
var ways = map[string]yokan.Mode{"size": 0, "direct": yokan.Direct, "bulk": yokan.Bulk}

// newPairs returns n keys in their order, with values of the lengths 0, 1, 2 and so on times step.
func newPairs(prefix string, n, step int) (pairs []yokan.Pair) {
	for i := range n {
		pairs = append(pairs, yokan.Pair{Key: fmt.Appendf(nil, "%s%05d", prefix, i), Value: bytes.Repeat([]byte{byte(i)}, step*i)})
	}
	return pairs
}

func keysOf(pairs []yokan.Pair) (keys [][]byte) {
	for _, p := range pairs {
		keys = append(keys, p.Key)
	}
	return keys
}

func valuesOf(pairs []yokan.Pair) (values [][]byte) {
	for _, p := range pairs {
		values = append(values, p.Value)
	}
	return values
}

// testOperations plays each operation on an empty database, which a double or a real service has, and leaves it empty.
func testOperations(t *testing.T, db *yokan.Database, mode yokan.Mode) {
	ctx := testContext(t)
	with := func(m yokan.Mode) *yokan.Database { return db.With(mode | m) }
	db = with(0)

	// One pair.
	key := []byte("a key")
	require.NoError(t, db.Put(ctx, key, []byte("value")))
	value, err := db.Get(ctx, key)
	require.NoError(t, err)
	require.Equal(t, "value", string(value))
	length, err := db.Length(ctx, key)
	require.NoError(t, err)
	require.EqualValues(t, 5, length)
	there, err := db.Exists(ctx, key)
	require.NoError(t, err)
	require.True(t, there)
	n, err := db.Count(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 1, n)

	// Modes of put.
	require.ErrorIs(t, with(yokan.NewOnly).Put(ctx, key, nil), yokan.ErrKeyExists)
	require.ErrorIs(t, with(yokan.ExistOnly).Put(ctx, []byte("another"), nil), yokan.ErrKeyNotFound)
	require.NoError(t, with(yokan.Append).Put(ctx, key, []byte(" and more")))
	value, err = db.Get(ctx, key)
	require.NoError(t, err)
	require.Equal(t, "value and more", string(value))
	value, err = with(yokan.Consume).Get(ctx, key)
	require.NoError(t, err)
	require.Equal(t, "value and more", string(value))

	// Nothing.
	_, err = db.Get(ctx, key)
	require.ErrorIs(t, err, yokan.ErrKeyNotFound)
	_, err = db.Length(ctx, key)
	require.ErrorIs(t, err, yokan.ErrKeyNotFound)
	there, err = db.Exists(ctx, key)
	require.NoError(t, err)
	require.False(t, there)
	require.NoError(t, db.Erase(ctx, key))

	// Values of all lengths, also of none and of more than a message, with a key between them that is not there.
	pairs := newPairs("k", 100, 100)
	require.NoError(t, db.PutMulti(ctx, pairs))
	keys := append([][]byte{[]byte("absent")}, keysOf(pairs)...)
	values, err := db.GetMulti(ctx, keys)
	require.NoError(t, err)
	require.Nil(t, values[0])
	require.NotNil(t, values[1], "an empty value is not nil")
	require.Equal(t, valuesOf(pairs)[1:], values[2:])
	lengths, err := db.Lengths(ctx, keys)
	require.NoError(t, err)
	flags, err := db.ExistsMulti(ctx, keys)
	require.NoError(t, err)
	for i := range keys {
		require.Equal(t, i > 0, flags[i])
		require.EqualValues(t, max(-1, 100*(i-1)), lengths[i])
	}
	for _, p := range pairs {
		value, err := db.Get(ctx, p.Key)
		require.NoError(t, err)
		require.True(t, bytes.Equal(p.Value, value), "%s", p.Key)
	}

	// Buffers of the caller.
	some := [][]byte{pairs[3].Key, []byte("absent"), pairs[7].Key, pairs[4].Key}
	packed, err := db.GetPacked(ctx, some, make([]byte, 2000))
	require.NoError(t, err)
	require.Equal(t, []yokan.Value{{Data: pairs[3].Value}, {Err: yokan.ErrKeyNotFound}, {Data: pairs[7].Value}, {Data: pairs[4].Value}}, packed)
	packed, err = db.GetPacked(ctx, some, make([]byte, 999))
	require.NoError(t, err)
	require.Equal(t, []yokan.Value{{Data: pairs[3].Value}, {Err: yokan.ErrKeyNotFound}, {Err: yokan.ErrBufferSize}}, packed[:3])
	each, err := db.GetEach(ctx, some, [][]byte{make([]byte, 300), make([]byte, 10), make([]byte, 699), make([]byte, 1000)})
	require.NoError(t, err)
	require.Equal(t, []yokan.Value{{Data: pairs[3].Value}, {Err: yokan.ErrKeyNotFound}, {Err: yokan.ErrBufferSize}, {Data: pairs[4].Value}}, each)
	for i, want := range []yokan.Value{{Data: pairs[3].Value}, {Err: yokan.ErrKeyNotFound}} {
		each, err = db.GetEach(ctx, some[i:i+1], [][]byte{make([]byte, 300)})
		require.NoError(t, err)
		require.Equal(t, []yokan.Value{want}, each)
	}

	// Lists.
	require.NoError(t, db.Put(ctx, []byte("z"), []byte("last")))
	for _, count := range []int{1, 3, 100, 500} {
		listed, err := db.ListKeys(ctx, nil, []byte("k"), count)
		require.NoError(t, err)
		require.Equal(t, keysOf(pairs)[:min(count, 100)], listed)
		both, err := db.ListPairs(ctx, nil, []byte("k"), count)
		require.NoError(t, err)
		require.Len(t, both, min(count, 100))
		for i, p := range both {
			require.Equal(t, pairs[i].Key, p.Key)
			require.True(t, bytes.Equal(pairs[i].Value, p.Value))
		}
	}
	for m, want := range map[yokan.Mode][]string{
		0: {"k00098", "k00099"}, yokan.Inclusive: {"k00097", "k00098"}, yokan.NoPrefix: {"00098", "00099"},
	} {
		listed, err := with(m).ListKeys(ctx, []byte("k00097"), []byte("k"), 2)
		require.NoError(t, err)
		require.Equal(t, want, []string{string(listed[0]), string(listed[1])})
	}
	suffix, err := with(yokan.Suffix).ListKeys(ctx, nil, []byte("7"), 100)
	require.NoError(t, err)
	require.Len(t, suffix, 10)
	ignored, err := with(yokan.IgnoreKeys).ListPairs(ctx, pairs[1].Key, nil, 2)
	require.NoError(t, err)
	require.Equal(t, valuesOf(pairs[2:4]), valuesOf(ignored))
	require.Empty(t, ignored[0].Key, "of the last one backends tell the key nevertheless")
	listed, err := db.ListKeys(ctx, []byte("z"), nil, 10)
	require.NoError(t, err)
	require.Empty(t, listed)

	// Erase.
	require.NoError(t, db.EraseMulti(ctx, keysOf(pairs)[:50]))
	n, err = db.Count(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 51, n)
	if err = db.ErasePrefix(ctx, []byte("k")); err != nil {
		require.ErrorIs(t, err, yokan.ErrOpUnsupported, "a release before 0.10")
		require.NoError(t, db.EraseMulti(ctx, keysOf(pairs)))
	}
	require.NoError(t, db.Erase(ctx, []byte("z")))
	n, err = db.Count(ctx)
	require.NoError(t, err)
	require.Zero(t, n)

	// Many keys, which do not fit into a message.
	many := newPairs("many", 1000, 0)
	require.NoError(t, db.PutMulti(ctx, many))
	flags, err = db.ExistsMulti(ctx, keysOf(many))
	require.NoError(t, err)
	require.NotContains(t, flags, false)
	lengths, err = db.Lengths(ctx, keysOf(many))
	require.NoError(t, err)
	require.Len(t, lengths, 1000)
	values, err = with(yokan.Consume).GetMulti(ctx, keysOf(many))
	require.NoError(t, err)
	require.Len(t, values, 1000)
	require.NoError(t, db.EraseMulti(ctx, keysOf(many)))
	n, err = db.Count(ctx)
	require.NoError(t, err)
	require.Zero(t, n)
}

// testFailures plays what a provider refuses, or the client itself.
func testFailures(t *testing.T, db *yokan.Database) {
	ctx := testContext(t)
	_, err := db.Get(ctx, nil)
	require.ErrorIs(t, err, yokan.ErrInvalidArgs)
	require.Equal(t, mercury.NotRun, fateOf(err))
	for mode, want := range map[yokan.Mode]mercury.Fate{
		yokan.Append | yokan.NewOnly: mercury.NotRun, // which the client refuses
		1 << 20:                      mercury.Ran,    // and which the provider does
		1<<20 | yokan.Bulk:           mercury.Ran,
	} {
		err = db.With(mode).Put(ctx, []byte("k"), nil)
		require.ErrorIs(t, err, yokan.ErrMode)
		require.Equal(t, want, fateOf(err))
	}
	require.NoError(t, db.PutMulti(ctx, nil))
	_, err = db.ListKeys(ctx, nil, nil, -1)
	require.ErrorIs(t, err, yokan.ErrInvalidArgs)

	_, err = yokan.Open(ctx, openNode(t), db.Addr(), db.Provider()+1, yokan.Config{})
	require.ErrorIs(t, err, mercury.ErrNoMethod)
	require.ErrorContains(t, err, "no such provider")
	require.Equal(t, mercury.NotRun, fateOf(err))
}

// testSegments puts n values that are lent as they are, and reads them back.
func testSegments(t *testing.T, db *yokan.Database, n int) {
	ctx := testContext(t)
	mem := make([]byte, n*4096)
	pairs := make([]yokan.Pair, n)
	for i := range pairs {
		pairs[i] = yokan.Pair{Key: fmt.Appendf(nil, "segment%06d", i), Value: mem[4096*i : 4096*(i+1)]}
		copy(pairs[i].Value, pairs[i].Key)
	}
	require.NoError(t, db.PutMulti(ctx, pairs))
	values, err := db.GetMulti(ctx, keysOf(pairs))
	require.NoError(t, err)
	for i := range pairs {
		require.True(t, bytes.Equal(pairs[i].Value, values[i]), "value %d", i)
	}
	require.NoError(t, db.EraseMulti(ctx, keysOf(pairs)))
}

// testLoad puts 1,000 pairs of 1.5 MB with one call, and then 6,400 more from 16 goroutines, and gets.
func testLoad(t *testing.T, db *yokan.Database) {
	ctx := testContext(t)
	pairs := newPairs("bulk", 1000, 3)
	require.NoError(t, db.PutMulti(ctx, pairs))
	values, err := db.GetMulti(ctx, keysOf(pairs))
	require.NoError(t, err)
	for i := range pairs {
		require.True(t, bytes.Equal(pairs[i].Value, values[i]), "value %d", i)
	}
	var wg sync.WaitGroup
	errs := make([]error, 16)
	for g := range errs {
		wg.Go(func() {
			for i := range 200 {
				key, want := fmt.Appendf(nil, "g%02d-%04d", g, i), bytes.Repeat([]byte{byte(g)}, 10*i)
				if errs[g] = db.Put(ctx, key, want); errs[g] != nil {
					return
				}
				value, err := db.Get(ctx, key)
				if err == nil && !bytes.Equal(want, value) {
					err = fmt.Errorf("%s: %d bytes, want %d", key, len(value), len(want))
				}
				if errs[g] = err; err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	n, err := db.Count(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 4200, n)
}
