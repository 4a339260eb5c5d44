package mercury_test

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/mercury"
)

// TestLookup checks that names of hosts and of interfaces are looked up; an invalid name or address
// is not.
func TestLookup(t *testing.T) {
	all, err := net.Interfaces()
	require.NoError(t, err)
	loopback := ""
	for _, i := range all {
		if i.Flags&net.FlagLoopback != 0 {
			loopback = i.Name
		}
	}
	ctx := testContext(t)
	for addr, want := range map[string]string{
		"ofi+tcp://127.0.0.1:7":        "ofi+tcp://127.0.0.1:7",
		"ofi+tcp://10.1.2.3:4567":      "ofi+tcp://10.1.2.3:4567",
		"ofi+tcp://localhost:8":        "ofi+tcp://127.0.0.1:8",
		"ofi+tcp://" + loopback + ":9": "ofi+tcp://127.0.0.1:9",
	} {
		got, err := mercury.Lookup(ctx, addr)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for addr, want := range map[string]mercury.Code{
		"ofi+tcp://a..b:7":             mercury.ErrUnreachable, // no name that a resolver would look up
		"":                             mercury.ErrInvalid,
		"localhost:7":                  mercury.ErrInvalid,
		"tcp://localhost:7":            mercury.ErrInvalid,
		"ofi+tcp://localhost":          mercury.ErrInvalid,
		"ofi+tcp://:7":                 mercury.ErrInvalid,
		"ofi+tcp://[::1]:7":            mercury.ErrInvalid,
		"ofi+tcp://a..b:port":          mercury.ErrUnreachable,
		"ofi+tcp://" + loopback + ":x": mercury.ErrInvalid,
		"ofi+tcp;ofi_rxm://a:7":        mercury.ErrUnsupported,
	} {
		got, err := mercury.Lookup(ctx, addr)
		require.ErrorIs(t, err, want, "%q", addr)
		require.Empty(t, got)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err = mercury.Lookup(ended, "ofi+tcp://nowhere.invalid:7")
	require.ErrorIs(t, err, mercury.ErrCanceled)

	n, err := mercury.Open("ofi+tcp://"+loopback+":0", mercury.Config{})
	require.NoError(t, err)
	defer n.Close()
	require.Regexp(t, `^ofi\+tcp://127\.0\.0\.1:\d+$`, n.Addr())
	_, err = mercury.Open("ofi+tcp://a..b:0", mercury.Config{})
	require.ErrorIs(t, err, mercury.ErrUnreachable)
}
