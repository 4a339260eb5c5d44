package memfault_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/memfault"
)

// TestGatherAgain checks that the race detector reports Gather here, and not GatherAgain.
func TestGatherAgain(t *testing.T) {
	src, dst := []byte("01234"), make([]byte, 8)
	done := make(chan struct{})
	go func() {
		src[0] = 'x'
		close(done)
	}()
	n, ok := memfault.GatherAgain(dst, [][]byte{src, nil, []byte("56789")})
	<-done
	require.True(t, ok)
	require.Equal(t, 8, n)
	require.Equal(t, "1234567", string(dst[1:]))
}
