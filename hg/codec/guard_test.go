package codec_test

import (
	"bytes"
	"encoding/hex"
	"math/bits"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	require.NoError(t, err)
	return b
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name   string
		in     string
		want   error
		offset int
	}{
		{"nil", "c0", nil, 0},
		{"small integers", "93 00 7f e0", nil, 0},
		{"booleans", "92 c2 c3", nil, 0},
		{"short string", "a3 616263", nil, 0},
		{"long strings", "93 d901 61 da0001 61 db00000001 61", nil, 0},
		{"binary", "93 c401 61 c50001 61 c600000001 61", nil, 0},
		{"numbers", "9a cc01 cd0001 ce00000001 cf0000000000000001 d001 d10001 d200000001 d30000000000000001" +
			"ca00000000 cb0000000000000000", nil, 0},
		{"extensions", "98 d401 00 d501 0000 d601 00000000 d701 0000000000000000 d801 00000000000000000000000000000000" +
			"c700 01 c80001 01 61 c900000001 01 61", nil, 0},
		{"maps and arrays", "82 a161 90 a162 de0001 a163 df00000000", nil, 0},
		{"arrays", "92 dc0001 01 dd00000001 01", nil, 0},

		{"nothing", "", codec.ErrTruncated, 0},
		{"reserved", "92 01 c1", codec.ErrReserved, 2},
		{"trailing", "01 02", codec.ErrTrailing, 1},
		{"trailing after containers", "91 91 01 c0", codec.ErrTrailing, 3},
		{"string too short", "a3 6162", codec.ErrTruncated, 0},
		{"string eats what its array still owes", "92 a2 6162", codec.ErrTruncated, 1},
		{"length cut", "dd 000000", codec.ErrTruncated, 0},
		{"extension cut", "c7 02 01 61", codec.ErrTruncated, 0},
		{"extension without type", "c7 00", codec.ErrTruncated, 0},
		{"array of four billion", "dd ffffffff", codec.ErrTruncated, 0},
		{"map of four billion", "df ffffffff", codec.ErrTruncated, 0},
		{"map with a key only", "81 01", codec.ErrTruncated, 0},
		{"bytes that two arrays claim", "92 92 01 02", codec.ErrTruncated, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := unhex(t, c.in)
			err := codec.Check(in, codec.MaxDepth)
			if c.want == nil {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, c.want)
			var at *codec.InputError
			require.ErrorAs(t, err, &at)
			require.Equal(t, c.offset, at.Offset, "%v", err)
			require.Equal(t, len(in), at.Len)
		})
	}
}

func TestCheckMessage(t *testing.T) {
	err := codec.Check(unhex(t, "92 01 dd ffffffff 02"), codec.MaxDepth)
	require.EqualError(t, err,
		"codec: byte 2 of 8: array of 4294967295, with 1 bytes left: truncated input")
}

func nest(open string, levels int, inner ...byte) []byte {
	return append([]byte(strings.Repeat(open, levels)), inner...)
}

func TestCheckDepth(t *testing.T) {
	for _, open := range []string{"\x91", "\xdc\x00\x01", "\xdd\x00\x00\x00\x01", "\x81\xc0", "\xde\x00\x01\xc0"} {
		require.NoError(t, codec.Check(nest(open, 32, 0x01), 32))
		require.ErrorIs(t, codec.Check(nest(open, 33, 0x01), 32), codec.ErrDepth)
		require.ErrorIs(t, codec.Check(nest(open, 1<<20, 0x01), 32), codec.ErrDepth)
		require.NoError(t, codec.Check(nest(open, 100, 0x01), 100), "a caller may allow more than MaxDepth")
	}
	require.ErrorIs(t, codec.Check(nest("\x91", 32, 0x90), 32), codec.ErrDepth, "an empty array is a level too")
	require.NoError(t, codec.Check([]byte{1}, 0))
	require.ErrorIs(t, codec.Check([]byte{0x90}, 0), codec.ErrDepth)

	// Many containers beside each other are not deep.
	wide := append([]byte{0xdc, 0x10, 0x00}, bytes.Repeat([]byte{0x91, 0x90}, 4096)...)
	require.NoError(t, codec.Check(wide, 3))
}

func TestCheckAllocatesNothing(t *testing.T) {
	in, err := codec.Msgpack.Append(nil, map[string]any{"a": []int{1, 2, 3}, "b": map[string]string{"x": "y"}})
	require.NoError(t, err)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if codec.Check(in, codec.MaxDepth) != nil {
			panic("refused")
		}
	}))
}

// decoderSkips is the verdict of the decoder's own Skip, which recurses and so needs small inputs.
func decoderSkips(b []byte) bool {
	r := bytes.NewReader(b)
	return msgpack.NewDecoder(r).Skip() == nil && r.Len() == 0
}

// requireSameAsSkip fails if Check and Skip judge b differently.
func requireSameAsSkip(t *testing.T, b []byte) (valid bool) {
	t.Helper()
	err := codec.Check(b, len(b))
	if err != nil && bits.UintSize == 32 {
		return false // a length that is no int is negative for Skip, which continues
	}
	if decoderSkips(b) != (err == nil) {
		t.Fatalf("Check returns %v for %x, Skip the opposite", err, b)
	}
	return err == nil
}

// randomInput favours short inputs, small containers and lengths that fit.
func randomInput(rng *rand.Rand) []byte {
	b := make([]byte, 1+rng.IntN(24))
	for i := range b {
		switch rng.IntN(4) {
		case 0:
			b[i] = byte(rng.IntN(256))
		case 1:
			b[i] = byte(rng.IntN(4))
		case 2:
			b[i] = "\x80\x81\x82\x90\x91\x92\x93\xa0\xa1\xa2\xc0"[rng.IntN(11)]
		case 3:
			b[i] = byte(0xc0 + rng.IntN(0x20))
		}
	}
	return b
}

func TestCheckAgreesWithSkip(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	valid := 0
	for range 20_000 {
		if requireSameAsSkip(t, randomInput(rng)) {
			valid++
		}
	}
	require.Greater(t, valid, 200, "the inputs should reach both verdicts")
}

func FuzzCheck(f *testing.F) {
	for _, s := range []string{"c0", "93007fe0", "82a16190a162de0001a163df00000000", "ddffffffff", "c70001", "c1", "d6ff00000000"} {
		f.Add(unhex(f, s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 4096 {
			t.Skip("Skip recurses")
		}
		requireSameAsSkip(t, b)
	})
}

func BenchmarkCheck(b *testing.B) {
	rows := make([]map[string]any, 40)
	for i := range rows {
		rows[i] = map[string]any{"name": "a name of usual length", "id": i, "tags": []string{"one", "two"}, "ok": true}
	}
	in, err := codec.Msgpack.Append(nil, rows)
	require.NoError(b, err)
	b.SetBytes(int64(len(in)))
	for b.Loop() {
		if err := codec.Check(in, codec.MaxDepth); err != nil {
			b.Fatal(err)
		}
	}
}
