package grpcqs

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
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

// TestItemIsCopied: the bytes of an item of a stream are its own when it is decoded: package qs
// uses the buffer for other streams from then on.
func TestItemIsCopied(t *testing.T) {
	b := []byte{flagMessage, 1, 2, 3}
	var i item
	require.NoError(t, wireCodec{}.Decode(b, &i))
	clear(b)
	var f frame
	require.NoError(t, f.decode(i.b))
	require.Equal(t, []byte{1, 2, 3}, f.body)
}
