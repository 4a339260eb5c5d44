package udp

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBulkTurn checks that a turn begins with one datagram, grows by small steps up to a maximum, and
// is short again after a message.
func TestBulkTurn(t *testing.T) {
	var b bulkTurn
	require.Equal(t, turnLeast, b.bytes())
	for last := b.bytes(); last < turnBytes; last = b.bytes() {
		b.grow()
		require.Equal(t, min(last+turnStep, turnBytes), b.bytes())
	}
	b.grow()
	require.Equal(t, turnBytes, b.bytes())
	b.reset()
	require.Equal(t, turnLeast, b.bytes())
}
