package carrier_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// TestHeader checks the statements of the package comment about the methods of a Header, and about
// which side checks which checksum.
func TestHeader(t *testing.T) {
	t.Parallel()
	require.Equal(t, 66560, carrier.MaxWhole)
	payload := []byte("hello")
	h := carrier.Header{Kind: frame.Unexpected, Flags: frame.FlagPayload, Tag: 7}
	whole := h.Append(nil, payload)
	require.Equal(t, carrier.NeedHeader(whole), h.Size())
	got, err := carrier.ParseHeader(whole)
	require.NoError(t, err)
	require.Equal(t, len(payload), got.Payload())
	require.NoError(t, got.Verify(whole))
	whole[len(whole)-1] ^= 1
	got, err = carrier.ParseHeader(whole)
	require.NoError(t, err, "the checksum of a whole frame covers its payload, so that only Verify can check it")
	require.ErrorIs(t, got.Verify(whole), codes.ErrChecksum)

	h = carrier.Header{Kind: frame.Data}
	front := h.AppendFront(nil, carrier.PieceSize)
	got, err = carrier.ParseHeader(front)
	require.NoError(t, err)
	require.True(t, got.Kind.Bulk())
	require.Equal(t, carrier.PieceSize, got.Payload())
	front[20] ^= 1
	_, err = carrier.ParseHeader(front)
	require.ErrorIs(t, err, codes.ErrChecksum, "the front of a piece has a checksum of its own")
}
