package codec_test

import (
	"fmt"
	"io"
	"math/big"
	"net/netip"
	"net/url"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
)

type (
	secret   struct{ _ int }
	marshals struct{ secret } //lint:ignore U1000 the same
	Mixed    struct {
		Shown  int
		secret //lint:ignore U1000 an embedded struct whose fields are not exported
	}
	family struct {
		Leaf  int
		Under []*family
	}
	stamped struct { // with methods of its own
		time.Time
		N int
	}
	Locked struct {
		sync.Mutex
		N int
	}
)

func (stamped) MarshalBinary() ([]byte, error)  { return nil, nil }
func (*stamped) UnmarshalBinary(b []byte) error { return nil }

func (marshals) MarshalBinary() ([]byte, error)  { return nil, nil }
func (*marshals) UnmarshalBinary(b []byte) error { return nil }

// TestCheckType checks that a type with a part that would not be sent is refused, by its name, that
// of the field, and the reason; others are not.
func TestCheckType(t *testing.T) {
	t.Parallel()
	check := func(c codec.Codec, v any) error { return c.(codec.TypeChecker).CheckType(reflect.TypeOf(v).Elem()) }
	for _, v := range []any{
		new(int), new(string), new([]byte), new(struct{}), new(any), new(error), new(map[string]any), new(time.Time), new(time.Duration),
		new(netip.Addr), new(big.Int), new(url.URL), new(marshals), new(*marshals), new(family), new(stamped), new(struct{ time.Time }), new(Locked), new(Mixed), new([4]uint8),
		new(struct{ T *time.Time }), new(struct{ Under struct{} }),
		new(struct {
			C chan int `msgpack:"-"`
			N int
		}),
		new(struct {
			_msgpack struct{} `msgpack:",as_array"`
			A, B     int
		}),
	} {
		require.NoError(t, check(codec.Msgpack, v), "%T", v)
		_, err := codec.Msgpack.Append(nil, v)
		require.NoError(t, err, "%T", v)
	}
	for _, row := range []struct {
		v    any
		want string
	}{
		{new(struct {
			time.Time
			N int
		}), `which inherits the encoding of its embedded time\.Time and loses its other fields`},
		{new(chan int), `chan int has type chan int, which has no encoding; add the tag`},
		{new(struct{ F func() }), `\.F has type func\(\), which has no encoding`},
		{new(struct{ P uintptr }), `\.P has type uintptr, which has no encoding`},
		{new(struct{ In []map[string]*complex64 }), `\.In has type complex64, which has no encoding`},
		{new(struct{ In [2]complex128 }), `\.In\[2\] has type complex128, which has no encoding`},
		{new(secret), `secret has type codec_test\.secret, a struct without exported fields`},
		{new(struct{ H *secret }), `\.H has type codec_test\.secret, a struct without exported fields`},
		{new(map[secret]int), `a key of map\[codec_test\.secret\]int has type codec_test\.secret`},
		{new(struct{ sync.Mutex }), `a struct without exported fields`},
		{new(struct{ S fmt.Stringer }), `\.S has type fmt\.Stringer, an interface with methods, which cannot be decoded`},
		{new(struct{ S []io.Reader }), `\.S has type io\.Reader, an interface`},
		{new(struct {
			A int `msgpack:"x"`
			B int `msgpack:"x"`
		}), `whose fields A and B have the same name "x"`},
		{new(struct {
			A string `msgpack:",intern"`
		}), `\.A has the unsupported tag option intern`},
	} {
		err := check(codec.Msgpack, row.v)
		require.ErrorIs(t, err, codec.ErrType, "%T", row.v)
		require.Regexp(t, row.want, err.Error())
	}
	for _, v := range []any{new([]byte), new(string), new(netip.Addr), new(marshals)} {
		require.NoError(t, check(codec.Raw, v), "%T", v)
	}
	for _, v := range []any{new(int), new(struct{}), new(struct{ A []byte })} {
		require.ErrorIs(t, check(codec.Raw, v), codec.ErrType, "%T", v)
	}
}
