package secure

import (
	"crypto/tls"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReasonNamesField checks that the remedy for a peer that does not trust the authority of this
// side names the field of the peer's tls.Config: ClientCAs at a server, RootCAs at a client.
func TestReasonNamesField(t *testing.T) {
	const unknownCA = 48
	err := &net.OpError{Op: "remote error", Err: tls.AlertError(unknownCA)}
	require.Equal(t, "the peer does not trust the authority of the local certificate; add it to ClientCAs in the peer's "+
		"tls.Config (LoadTLS: the ca file) (unknown certificate authority)", Reason(err))
	require.Equal(t, "the peer does not trust the authority of the local certificate; add it to RootCAs in the peer's "+
		"tls.Config (LoadTLS: the ca file) (unknown certificate authority)", AcceptReason(err))
}
