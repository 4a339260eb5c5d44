package soak

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/ledger"
)

// TestLogKeepsLibraryPanics checks that of the logs of the processes of a soak, only the panics of
// the library reach standard error.
func TestLogKeepsLibraryPanics(t *testing.T) {
	t.Parallel()
	var out, book bytes.Buffer
	log := slog.New(newPanicHandler(ledger.NewBook(&book), &out))
	log.Info("listening")
	log.Error("handler panicked", "rpc", "work", "panic", "on purpose", "stack", "s")
	log.Error("the connection was lost", "peer", "p")
	require.Empty(t, out.String())
	require.Empty(t, book.String())
	log.Error("na: internal panic while handling data from a peer, please report it", "panic", "index out of range", "stack", "frames")
	require.Contains(t, out.String(), "index out of range")
	require.Contains(t, out.String(), "frames")
	audit := ledger.NewAudit()
	require.NoError(t, audit.Read(&book))
	audit.Close(func(uint64) bool { return false })
	require.ErrorContains(t, audit.Err(), "the library has panicked")
}
