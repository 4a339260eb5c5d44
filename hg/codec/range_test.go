package codec_test

import (
	"math"
	"math/big"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
)

// TestIntegersFit checks that an integer that the receiver's type does not hold is refused, from
// every type into every other, at the limits of all of them.
func TestIntegersFit(t *testing.T) {
	t.Parallel()
	var values []any
	for _, n := range []int64{0, 1, -1, -32, -33, 127, 128, -128, -129, 255, 256, 32767, 32768, -32768, -32769, 65535, 65536, math.MaxInt32, math.MaxInt32 + 1,
		math.MinInt32, math.MinInt32 - 1, math.MaxUint32, math.MaxUint32 + 1, math.MaxInt64, math.MinInt64} {
		values = append(values, n, int(n), int32(n), int16(n), int8(n), uint64(n), uint32(n), uint16(n), uint8(n))
	}
	for _, v := range values {
		b, err := codec.Msgpack.Append(nil, struct{ N []any }{[]any{v}})
		require.NoError(t, err)
		for _, to := range []any{int8(0), int16(0), int32(0), int64(0), 0, uint8(0), uint16(0), uint32(0), uint64(0), uint(0)} {
			if reflect.TypeOf(to).Kind() == reflect.Uint8 { // []uint8 is bytes
				continue
			}
			into := reflect.New(reflect.StructOf([]reflect.StructField{{Name: "N", Type: reflect.SliceOf(reflect.TypeOf(to))}}))
			err := codec.Msgpack.Decode(b, into.Interface())
			fits := exactInt(reflect.ValueOf(v)).Cmp(exactInt(reflect.ValueOf(v).Convert(reflect.TypeOf(to)))) == 0
			if !fits {
				require.ErrorIs(t, err, codec.ErrRange, "%v into %T", v, to)
				require.ErrorContains(t, err, "N: ")
				continue
			}
			require.NoError(t, err, "%v into %T", v, to)
			require.Zero(t, exactInt(reflect.ValueOf(v)).Cmp(exactInt(into.Elem().Field(0).Index(0))), "%v into %T", v, to)
		}
	}
}

func exactInt(v reflect.Value) *big.Int {
	if v.CanInt() {
		return big.NewInt(v.Int())
	}
	return new(big.Int).SetUint64(v.Uint())
}
