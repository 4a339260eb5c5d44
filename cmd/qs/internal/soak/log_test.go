package soak

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLogKeepsLibraryPanics: of what the processes of a soak log, only the panics of the library reach standard error.
func TestLogKeepsLibraryPanics(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := slog.New(newPanicHandler(&out))
	log.Info("listening")
	log.Error("handler panicked", "rpc", "work", "panic", "on purpose", "stack", "s")
	log.Error("the connection was lost", "peer", "p")
	require.Empty(t, out.String())
	log.Error("na: a panic while the bytes of a peer were handled", "panic", "index out of range", "stack", "frames")
	require.Contains(t, out.String(), "index out of range")
	require.Contains(t, out.String(), "frames")
}
