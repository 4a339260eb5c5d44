package yokan_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/contrib/yokan"
	"github.com/quicksilver-rpc/quicksilver/mercury"
)

// TestHostileAnswers checks that sizes beyond the buffer, of another number, that add up to more
// than there is, or mean nothing where they are, and flags of another number, are ErrAnswer,
// whichever way the data travel. Codes that there are not are reported by their number.
func TestHostileAnswers(t *testing.T) {
	d, db := openDouble[head010](t, yokan.Config{})
	ctx := testContext(t)
	keys := [][]byte{[]byte("a"), []byte("b")}
	require.NoError(t, db.PutMulti(ctx, []yokan.Pair{{Key: keys[0], Value: []byte("value")}, {Key: keys[1], Value: []byte("value")}}))
	calls := map[string]func(*yokan.Database) error{
		"get": func(db *yokan.Database) error { _, err := db.GetMulti(ctx, keys); return err },
		"get packed": func(db *yokan.Database) error {
			buf := make([]byte, 20)
			_, err := db.GetPacked(ctx, keys, buf[:10])
			require.Equal(t, make([]byte, 10), buf[10:])
			return err
		},
		"get each": func(db *yokan.Database) error {
			_, err := db.GetEach(ctx, keys, [][]byte{make([]byte, 5), make([]byte, 5)})
			return err
		},
		"length": func(db *yokan.Database) error { _, err := db.Lengths(ctx, keys); return err },
		"exists": func(db *yokan.Database) error { _, err := db.ExistsMulti(ctx, keys); return err },
		"keys":   func(db *yokan.Database) error { _, err := db.ListKeys(ctx, nil, nil, 2); return err },
		"pairs":  func(db *yokan.Database) error { _, err := db.ListPairs(ctx, nil, nil, 2); return err },
		"put":    func(db *yokan.Database) error { return db.PutMulti(ctx, []yokan.Pair{{Key: keys[0]}}) },
		"erase":  func(db *yokan.Database) error { return db.EraseMulti(ctx, keys) },
		"prefix": func(db *yokan.Database) error { return db.ErasePrefix(ctx, []byte("x")) },
		"count":  func(db *yokan.Database) error { _, err := db.Count(ctx); return err },
	}
	sizes := func(i int, all ...uint64) func(*reply) { return func(r *reply) { r.sizes[i] = all } }
	both := []yokan.Mode{yokan.Direct, yokan.Bulk}
	direct := []yokan.Mode{yokan.Direct} // with bulk there cannot be another number of sizes
	lies := []struct {
		what  string
		calls []string
		modes []yokan.Mode
		forge func(*reply)
	}{
		{"beyond", []string{"get", "get packed", "get each", "keys", "pairs"}, both, sizes(0, 1<<40, 5)},
		{"sum beyond", []string{"get packed"}, both, sizes(0, 6, 5)},
		{"sum overflows", []string{"get", "get packed", "keys", "pairs"}, both, sizes(0, 5, 1<<64-5)},
		{"each beyond", []string{"get each"}, both[1:], sizes(0, 5, 6)},
		{"negative", []string{"get", "get packed", "get each", "length", "keys", "pairs"}, both, sizes(0, 1<<63, 1<<63)},
		{"no more keys", []string{"get", "get packed", "get each", "length"}, both, sizes(0, noMore, noMore)},
		{"not found", []string{"keys", "pairs"}, both, sizes(0, absent, absent)},
		{"too small", []string{"length"}, both, sizes(0, tooSmall, tooSmall)},
		{"value beyond", []string{"pairs"}, both, sizes(1, 1<<40, 5)},
		{"value negative", []string{"pairs"}, both, sizes(1, 1<<63, 5)},
		{"no more values", []string{"pairs"}, both, sizes(1, noMore, noMore)},
		{"no value", []string{"pairs"}, both, sizes(1, absent, absent)},
		{"none", []string{"get", "get packed", "length", "keys", "pairs"}, direct, sizes(0)},
		{"one", []string{"get", "get packed", "length", "keys", "pairs"}, direct, sizes(0, 1)},
		{"three", []string{"get", "get packed", "length", "keys", "pairs"}, direct, sizes(0, 1, 1, 1)},
		{"a value less", []string{"pairs"}, direct, sizes(1, 1)},
		{"no data", []string{"get", "get packed", "keys", "pairs"}, direct, func(r *reply) { r.data = [2][]byte{} }},
		{"more data", []string{"get packed"}, direct, func(r *reply) { r.data[0] = make([]byte, 11) }},
		{"no flags", []string{"exists"}, direct, func(r *reply) { r.flags = nil }},
		{"flags", []string{"exists"}, direct, func(r *reply) { r.flags = make([]byte, 2) }},
	}
	for _, lie := range lies {
		d.forgeWith(func(_ string, r *reply) { lie.forge(r) })
		for _, call := range lie.calls {
			for _, mode := range lie.modes {
				if call == "get each" && mode == yokan.Direct {
					continue // it has one way only
				}
				err := calls[call](db.With(mode))
				require.ErrorIs(t, err, yokan.ErrAnswer, "%s: %s, mode %d", lie.what, call, mode)
				require.Equal(t, mercury.Ran, fateOf(err))
			}
		}
	}
	for _, code := range []int32{-1, 36, -1 << 31, 15} {
		d.forgeWith(func(_ string, r *reply) { r.ret = code })
		for call, fn := range calls {
			for _, mode := range both {
				err := fn(db.With(mode))
				require.ErrorIs(t, err, yokan.Code(code), "%s", call)
				require.Equal(t, mercury.Ran, fateOf(err))
			}
		}
	}
	d.forgeWith(func(string, *reply) { panic("a provider that fails") })
	d.t = discardT{}
	for call, fn := range calls {
		for _, mode := range both {
			require.ErrorIs(t, fn(db.With(mode)), mercury.ErrRemote, "%s", call)
		}
	}
}

// TestForeignAnswers checks that the output of another type is an error, and so is a provider that
// does not use Margo.
func TestForeignAnswers(t *testing.T) {
	n, service := openNode(t), openNode(t)
	for _, name := range []string{"yk_count", "yk_get_direct", "yk_list_keyvals_direct", "yk_length_direct", "yk_put_direct"} {
		out := []byte{0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2, 3} // a count of 2^64-1
		if name == "yk_count" {
			out = nil
		}
		service.Handle(mercury.MargoID(name, 42), func(r *mercury.Request) { _ = r.Respond(out) })
	}
	p, err := service.Provide(42, "yokan")
	require.NoError(t, err)
	mercury.DefineMargo[checkDIn[head010], existsDOut]("yk_exists_direct").HandleAt(p, func(context.Context, checkDIn[head010]) (existsDOut, error) {
		return existsDOut{Flags: []byte{0}}, nil
	})
	ctx := testContext(t)
	db, err := yokan.Open(ctx, n, service.Addr(), 42, yokan.Config{})
	require.NoError(t, err)
	_, err = db.Count(ctx)
	require.ErrorIs(t, err, mercury.ErrProtocol)
	_, err = db.Get(ctx, []byte("k"))
	require.ErrorIs(t, err, mercury.ErrProtocol)
	_, err = db.Length(ctx, []byte("k"))
	require.ErrorIs(t, err, mercury.ErrProtocol)
	_, err = db.ListPairs(ctx, nil, nil, 3)
	require.ErrorIs(t, err, mercury.ErrProtocol)
	require.ErrorIs(t, db.Put(ctx, []byte("k"), nil), mercury.ErrProtocol)
	require.Equal(t, mercury.Ran, fateOf(db.Put(ctx, []byte("k"), nil)))
}
