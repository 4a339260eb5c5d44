package codec

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"
)

type inner struct {
	C string
	D int `msgpack:"dee"`
}

type Shadow struct{ A, E string }

type Deep struct {
	inner
	F string
}

type own struct{ X []string }

func (own) EncodeMsgpack(e *msgpack.Encoder) error  { return e.EncodeNil() }
func (*own) DecodeMsgpack(d *msgpack.Decoder) error { return d.DecodeNil() }

// TestShapeKnowsTheEncodersFields checks that the shape of a struct has the names and the order of
// the encoder, which are the decoder's too.
func TestShapeKnowsTheEncodersFields(t *testing.T) {
	for _, v := range []any{
		&struct {
			A, B string
			c    int //nolint:unused // not on the wire
		}{},
		&struct {
			A string `msgpack:"a"`
			B string `msgpack:"-"`
			C string `msgpack:",omitempty"`
			D string `msgpack:"d,alias:dd"`
			E string `msgpack:"'quoted'"`
		}{C: "present"},
		&struct {
			A string
			inner
		}{},
		&struct {
			inner
			A string
		}{},
		&struct {
			A string
			Shadow
		}{},
		&struct {
			A      string
			Shadow `msgpack:",inline"`
		}{},
		&struct {
			Shadow `msgpack:",noinline"`
			A      string
		}{},
		&struct {
			Shadow `msgpack:"s"`
			B      string
		}{},
		&struct {
			Deep
			Shadow
			Z string
		}{},
		&struct {
			own
			B string
		}{},
		&struct {
			time.Time
			B string
		}{},
		&struct {
			*inner
			B string
		}{},
	} {
		b, err := Msgpack.Append(nil, v)
		require.NoError(t, err)
		s := shapeOf(v)
		cl, n, pos := head(b, 0)
		if cl != dict { // an embedded type encodes the whole
			require.Equal(t, leaf, s.kind, "%T", v)
			continue
		}
		require.Equal(t, record, s.kind, "%T", v)
		require.Len(t, s.order, n, "%T", v)
		for i := range n {
			_, length, body := head(b, pos)
			name := string(b[body : body+length])
			require.Contains(t, s.fields, name, "%T", v)
			require.Same(t, s.fields[name].shape, s.order[i], "%T: %s", v, name)
			pos = skip(b, body+length)
		}
	}
}

// TestShapeIsLight checks that types without large elements cost only a lookup in the cache.
func TestShapeIsLight(t *testing.T) {
	type request struct {
		Name  string
		Data  []byte
		Sizes []int
		Attrs map[string]string
		Rows  [][]string
		When  time.Time
		Fixed [100]int
		Any   map[string]any
	}
	require.Zero(t, shapeOf(new(request)).largest)
	require.Zero(t, shapeOf(new([]time.Time)).largest)
	require.NotZero(t, shapeOf(new([]request)).largest)
	require.NotZero(t, shapeOf(new(*request)).largest)
	require.NotZero(t, shapeOf(new(map[string][]request)).largest)
	require.Same(t, shapeOf(new(request)), shapeOf(new(request)), "compiled once")
}
