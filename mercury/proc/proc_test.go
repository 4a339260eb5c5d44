package proc_test

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/beginnings"
	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/mercury"
	"github.com/quicksilver-rpc/quicksilver/mercury/internal/golden"
	"github.com/quicksilver-rpc/quicksilver/mercury/internal/hgwire"
	"github.com/quicksilver-rpc/quicksilver/mercury/proc"
)

func TestMain(m *testing.M) { leak.Main(m) }

type inner struct {
	X int16
	Y uint8
}

type all struct {
	A   bool
	B   int8
	C   uint32
	D   int64
	E   float64
	S   string
	Arr [2]inner
	L   []inner `proc:"u16"`
	Raw []byte  `proc:"u32"`
	H   mercury.Bulk
	P   *string
	End []byte `proc:"rest"`
}

func value() all {
	return all{true, -2, 0x01020304, -5, 1.5, "hi", [2]inner{{-1, 2}, {3, 4}}, []inner{{5, 6}}, []byte("raw"), mercury.Bulk{}, nil, []byte("end")}
}

// TestBytes checks that the bytes are those of hg_proc: nothing between the fields, little-endian,
// strings with their end and two flags.
func TestBytes(t *testing.T) {
	b, err := proc.Marshal(value())
	require.NoError(t, err)
	require.Equal(t, "01"+"fe"+"04030201"+"fbffffffffffffff"+"000000000000f83f"+"0300000000000000"+"686900"+"0001"+
		"ffff02"+"030004"+"0100"+"050006"+"03000000"+"726177"+"0000000000000000"+"0000000000000000"+"656e64", hex.EncodeToString(b))
	var back all
	require.NoError(t, proc.Unmarshal(b, &back))
	require.Equal(t, value(), back)
	for n := range len(b) - 3 { // the end may be of any length
		require.Error(t, proc.Unmarshal(b[:n], &back), "%d bytes", n)
	}
	b, err = proc.Marshal([]byte("just bytes"))
	require.NoError(t, err)
	require.Equal(t, "just bytes", string(b))
	b, err = proc.Marshal(struct{}{})
	require.NoError(t, err)
	require.Empty(t, b)
	require.ErrorContains(t, proc.Unmarshal([]byte{1, 2}, new(uint8)), "1 trailing bytes")
}

// TestString checks the input of hg_test_rpc_open as C encodes it: a string and a handle of 64
// bits.
func TestString(t *testing.T) {
	type in struct {
		Path   string
		Handle uint64
	}
	b, err := proc.Marshal(in{"./test.txt", 12345})
	require.NoError(t, err)
	require.Equal(t, "0b00000000000000"+hex.EncodeToString([]byte("./test.txt\x00"))+"0001"+"3930000000000000", hex.EncodeToString(b))
	var s string
	require.ErrorContains(t, proc.Unmarshal([]byte{1, 0, 0, 0, 0, 0, 0, 0, 'x', 0, 0}, &s), "zero byte")
	_, err = proc.Marshal("a\x00b")
	require.ErrorContains(t, err, "zero byte")
}

// nullIn is a struct of C with a hg_string_t, a uint32_t and bytes.
type nullIn struct {
	Origin *string
	N      uint32
	Rest   []byte `proc:"rest"`
}

// TestNull checks that the bytes of a NULL hg_string_t are a length of 0 and nothing else, in the
// input and the output of a call as C sends them.
func TestNull(t *testing.T) {
	messages, err := golden.Read("null")
	require.NoError(t, err)
	_, b, err := hgwire.ParseSource(messages[2].Bytes[24:])
	require.NoError(t, err)
	_, input, err := hgwire.ParseRequest(b)
	require.NoError(t, err)
	_, output, err := hgwire.ParseResponse(messages[3].Bytes[24:])
	require.NoError(t, err)
	want := nullIn{nil, 7, []byte("payload")}

	b, err = proc.Marshal(want)
	require.NoError(t, err)
	require.Equal(t, input, b)
	for _, origin := range []*string{nil, new(string)} {
		in := nullIn{Origin: origin}
		require.NoError(t, proc.Unmarshal(input, &in))
		require.Equal(t, want, in)
	}
	var plain struct { // a reader that does not distinguish NULL reads ""
		Origin string
		N      uint32
		Rest   []byte `proc:"rest"`
	}
	plain.Origin = "old"
	require.NoError(t, proc.Unmarshal(input, &plain))
	require.Empty(t, plain.Origin)
	require.EqualValues(t, 7, plain.N)
	require.Equal(t, "payload", string(plain.Rest))

	type text string
	two := struct { // hg_string_t, hg_const_string_t
		A *text
		B *string
	}{}
	require.NoError(t, proc.Unmarshal(output, &two))
	require.Nil(t, two.B)
	require.EqualValues(t, "yokan", *two.A)
	b, err = proc.Marshal(two)
	require.NoError(t, err)
	require.Equal(t, output, b)
	for n := range len(output) {
		require.Error(t, proc.Unmarshal(output[:n], &two), "%d bytes", n)
	}
	empty := ""
	b, err = proc.Marshal(&empty)
	require.NoError(t, err)
	require.Equal(t, "0100000000000000"+"00"+"0001", hex.EncodeToString(b), "an empty string is not NULL")
	zero := "a\x00b"
	_, err = proc.Marshal(&zero)
	require.ErrorContains(t, err, "zero byte")
}

func TestRefused(t *testing.T) {
	type self struct {
		L []self `proc:"u8"`
	}
	for want, v := range map[string]any{
		"want int32 or int64":   struct{ A struct{ B int } }{},
		"want uint32 or uint64": uint(1),
		"in field B":            struct{ B int }{},
		"has no tag":            struct{ L []int32 }{},
		"want a slice": struct {
			N int32 `proc:"u8"`
		}{},
		"not the last or not": struct {
			B []byte `proc:"rest"`
			C bool
		}{},
		"recursive type":                   self{},
		"unsupported type map[string]bool": map[string]bool{},
		"pointer type *int32":              new(int32),
		"pointer type **string":            new(*string),
		"is not exported":                  struct{ a int32 }{},
		"empty elements": struct {
			L []struct{} `proc:"u64"`
		}{},
		"300 items overflow": struct {
			L []bool `proc:"u8"`
		}{make([]bool, 300)},
		"empty elements or too many": [3]struct{}{},
	} {
		_, err := proc.Marshal(v)
		require.ErrorContains(t, err, want)
		if want != "300 items overflow" {
			require.Error(t, proc.Check(reflect.TypeOf(v)))
		}
	}
	require.Error(t, proc.Unmarshal(nil, all{}))
	_, err := proc.Marshal(nil)
	require.Error(t, err)
}

func FuzzUnmarshal(f *testing.F) {
	b, _ := proc.Marshal(value())
	beginnings.Seed(f, b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var v, back all
		if proc.Unmarshal(b, &v) != nil {
			return
		}
		again, err := proc.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := proc.Unmarshal(again, &back); err != nil || !bytes.Equal(v.End, back.End) || len(v.L) != len(back.L) || (v.P == nil) != (back.P == nil) {
			t.Fatalf("got %+v, %v, want %+v", back, err, v)
		}
	})
}
