package qs_test

import (
	"errors"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestAddrInUse checks that the error of an Open whose address is taken matches ErrAddrInUse and
// syscall.EADDRINUSE, and no other code does.
func TestAddrInUse(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{"tcp://127.0.0.1:0", "udp://127.0.0.1:0", "sm://*"} {
		if strings.HasPrefix(addr, "sm") && runtime.GOOS != "linux" {
			continue
		}
		n := open(t, addr, qs.Config{})
		_, err := qs.Open(n.Addr().String(), qs.Config{})
		require.ErrorIs(t, err, na.ErrAddrInUse, addr)
		require.ErrorIs(t, err, syscall.EADDRINUSE, addr)
	}
	require.False(t, errors.Is(qs.ErrInvalid, syscall.EADDRINUSE))
}
