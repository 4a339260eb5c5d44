package memfault_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/memfault"
)

// The race detector finds fault with Copy here, and not with CopyAgain.
func TestCopyAgain(t *testing.T) {
	src, dst := []byte("0123456789"), make([]byte, 8)
	done := make(chan struct{})
	go func() {
		src[0] = 'x'
		close(done)
	}()
	n, ok := memfault.CopyAgain(dst, src)
	<-done
	require.True(t, ok)
	require.Equal(t, 8, n)
	require.Equal(t, "1234567", string(dst[1:]))
}
