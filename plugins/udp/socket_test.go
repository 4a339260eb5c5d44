package udp

import (
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBindErrorText checks that the error of a class that does not listen names no address.
func TestBindErrorText(t *testing.T) {
	require.EqualError(t, bindError(netip.AddrPort{}, syscall.EMFILE), "open a socket: too many open files")
	require.EqualError(t, bindError(netip.MustParseAddrPort("127.0.0.1:7"), syscall.EMFILE), "listen on 127.0.0.1:7: too many open files")
}
