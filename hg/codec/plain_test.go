package codec_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
)

// TestPlain checks that bytes and strings are coded without the encoder of msgpack, with the same
// result.
func TestPlain(t *testing.T) {
	var (
		noBytes  *[]byte
		noString *string
	)
	values := []any{[]byte(nil), new([]byte), noBytes, noString}
	for _, n := range []int{0, 1, 31, 32, 255, 256, 1<<16 - 1, 1 << 16} {
		b, s := bytes.Repeat([]byte{'b'}, n), strings.Repeat("s", n)
		values = append(values, b, &b, s, &s)
	}
	for _, v := range values {
		want, err := msgpack.Marshal(v)
		require.NoError(t, err)
		got, err := codec.Msgpack.Append([]byte("head"), v)
		require.NoError(t, err)
		require.Equal(t, "head"+string(want), string(got), "%T of %d bytes", v, len(want))

		for _, room := range [][]byte{nil, {}, make([]byte, 10, 300), make([]byte, 1<<17)} {
			into, wantInto := bytes.Clone(room), bytes.Clone(room)
			require.NoError(t, codec.Msgpack.Decode(want, &into))
			require.NoError(t, msgpack.Unmarshal(want, &wantInto))
			require.Equal(t, wantInto, into, "%T of %d bytes into %d", v, len(want), len(room))
		}
		into, wantInto := "before", "before"
		require.NoError(t, codec.Msgpack.Decode(want, &into))
		require.NoError(t, msgpack.Unmarshal(want, &wantInto))
		require.Equal(t, wantInto, into, "%T of %d bytes", v, len(want))
	}
	for _, b := range []string{"\x01", "\x91\x01", "\xc3", "\xca\x00\x00\x00\x00", "\xd4\x05\x01", "\x80"} {
		require.Error(t, codec.Msgpack.Decode([]byte(b), new(string)), "%x", b)
	}
	for _, b := range []string{"", "\xa1", "\xa0x", "\xa1xy", "\xbf", "\xc4", "\xc4\x02x", "\xc5\x00", "\xc5\x00\x01", "\xc5\x00\x01xy", "\xc6\x00\x00\x00",
		"\xc6\xff\xff\xff\xff", "\xd9", "\xd9\x01", "\xd9\x00x", "\xda\x00", "\xdb\x00\x00\x00\x02x", "\xdb\xff\xff\xff\xffx"} {
		for _, v := range []any{new([]byte), new(string)} { // the guard gives the reason
			want := codec.Check([]byte(b), codec.MaxDepth)
			if b == "" {
				want = &codec.InputError{Err: codec.ErrNoValue}
			}
			require.Equal(t, want, codec.Msgpack.Decode([]byte(b), v), "%x into %T", b, v)
		}
	}
	for _, v := range []any{noBytes, noString} {
		require.Error(t, codec.Msgpack.Decode([]byte("\xa1x"), v), fmt.Sprintf("%T", v))
	}
}
