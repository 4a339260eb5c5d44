package grpcqs

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func TestTimeoutText(t *testing.T) {
	for _, bad := range []string{"", "n", "5", "5m", "-5n", "0n", "9223372036854775808n"} {
		_, err := parseTimeout(bad)
		require.Error(t, err, bad)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*maxBudget)
	defer cancel()
	left, err := parseTimeout(encodeLongTimeout(ctx))
	require.NoError(t, err)
	require.Greater(t, left, maxBudget)
	ctx, cancel = context.WithTimeout(context.Background(), maxBudget)
	defer cancel()
	require.Empty(t, encodeLongTimeout(ctx))
	require.Empty(t, encodeLongTimeout(context.Background()))
}

// TestItemAliasesNothing checks that a message received on a stream is independent of the bytes
// that it was decoded from, whatever its codec retains: package qs uses the buffer for other
// streams afterwards.
func TestItemAliasesNothing(t *testing.T) {
	want := wrapperspb.Bytes([]byte{1, 2, 3})
	encoded, err := proto.Marshal(want)
	require.NoError(t, err)
	for _, codec := range []encoding.CodecV2{nil, retainingCodec{}} {
		b := append([]byte{flagMessage}, encoded...)
		var got wrapperspb.BytesValue
		var kept []byte
		i := item{into: &got}
		if codec != nil {
			i.into = &kept
		}
		i.format = &format{codec: codec, maxReceive: 100}
		require.NoError(t, wireCodec{}.Decode(b, &i))
		require.NoError(t, i.err)
		clear(b)
		if codec != nil {
			require.Equal(t, encoded, kept)
		} else {
			require.True(t, proto.Equal(want, &got), "%v", &got)
		}
		require.Equal(t, len(encoded), i.wireSize)
	}
}

// TestItemOfOtherKinds checks that without a destination a message is dropped, and a message that
// cannot be decoded is an error of the receiver, not of the wire.
func TestItemOfOtherKinds(t *testing.T) {
	i := item{}
	require.NoError(t, wireCodec{}.Decode([]byte{flagMessage, 255}, &i))
	require.True(t, i.hasMessage)
	i = item{into: &wrapperspb.BytesValue{}}
	i.format = &format{maxReceive: 100}
	require.NoError(t, wireCodec{}.Decode([]byte{flagMessage, 255}, &i))
	require.Equal(t, codes.Internal, status.Code(i.err))
	i = item{}
	require.NoError(t, wireCodec{}.Decode([]byte{0}, &i))
	require.False(t, i.hasMessage)
	require.Error(t, wireCodec{}.Decode(nil, &i))
}

// retainingCodec is a codec that retains what it decodes.
type retainingCodec struct{}

func (retainingCodec) Name() string                         { return "retaining" }
func (retainingCodec) Marshal(any) (mem.BufferSlice, error) { return nil, nil }
func (retainingCodec) Unmarshal(b mem.BufferSlice, v any) error {
	*v.(*[]byte) = b[0].ReadOnlyData()
	return nil
}
