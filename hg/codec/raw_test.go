package codec_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
)

// marshaler has MarshalBinary but not AppendBinary.
type marshaler struct {
	text string
	err  error
}

func (m *marshaler) MarshalBinary() ([]byte, error) { return []byte(m.text), m.err }

func (m *marshaler) UnmarshalBinary(b []byte) error {
	if string(b) == "panic" {
		panic("index out of range, say")
	}
	m.text = string(b)
	return m.err
}

func TestRawRoundTrip(t *testing.T) {
	require.Equal(t, "raw", codec.Raw.Name())
	b, s := []byte("bytes"), "string"
	for _, c := range []struct {
		in   any
		want string
	}{
		{nil, ""}, {b, "bytes"}, {&b, "bytes"}, {s, "string"}, {&s, "string"}, {[]byte(nil), ""},
		{(*[]byte)(nil), ""}, {(*string)(nil), ""}, {&marshaler{text: "own"}, "own"},
		{netip.AddrFrom4([4]byte{1, 2, 3, 4}), "\x01\x02\x03\x04"},
	} {
		out, err := codec.Raw.Append([]byte("head:"), c.in)
		require.NoError(t, err)
		require.Equal(t, "head:"+c.want, string(out), "%T", c.in)

		body := out[len("head:"):]
		var gotBytes []byte
		var gotString string
		var gotOwn marshaler
		require.NoError(t, codec.Raw.Decode(body, &gotBytes))
		require.NoError(t, codec.Raw.Decode(body, &gotString))
		require.NoError(t, codec.Raw.Decode(body, &gotOwn))
		require.NoError(t, codec.Raw.Decode(body, nil))
		clear(body) // the caller reuses the input
		require.Equal(t, []string{c.want, c.want, c.want}, []string{string(gotBytes), gotString, gotOwn.text})
	}
}

func TestRawReusesMemory(t *testing.T) {
	dst := make([]byte, 3, 64)
	require.NoError(t, codec.Raw.Decode([]byte("hello"), &dst))
	require.Equal(t, "hello", string(dst))
	require.Equal(t, 64, cap(dst))

	in, buf := []byte("payload"), make([]byte, 0, 64)
	inAny, dstAny := any(&in), any(&dst)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		out, err := codec.Raw.Append(buf, inAny)
		if err != nil || codec.Raw.Decode(out, dstAny) != nil {
			panic("failed")
		}
	}))
}

func TestRawErrors(t *testing.T) {
	_, err := codec.Raw.Append(nil, 42)
	require.ErrorIs(t, err, codec.ErrType)
	require.ErrorContains(t, err, "unsupported type, want []byte, string")
	require.ErrorContains(t, err, "encode int")

	for _, v := range []any{new(int), []byte("not a pointer"), (*[]byte)(nil), (*string)(nil)} {
		err = codec.Raw.Decode([]byte("x"), v)
		require.ErrorIs(t, err, codec.ErrType)
		require.ErrorContains(t, err, "want non-nil *[]byte")
	}

	broken := errors.New("broken")
	out, err := codec.Raw.Append([]byte("head"), &marshaler{err: broken})
	require.ErrorIs(t, err, broken)
	require.Equal(t, "head", string(out))
	require.ErrorIs(t, codec.Raw.Decode(nil, &marshaler{err: broken}), broken)
	require.ErrorContains(t, codec.Raw.Decode([]byte("panic"), &marshaler{}), "panic")
}
