package filetest

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Noise returns n pseudorandom bytes that depend only on n.
func Noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n)}).Read(b)
	return b
}

// Write creates a file with a fixed mode and time, and its parent directories.
func Write(t *testing.T, name string, data []byte) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o777))
	require.NoError(t, os.WriteFile(name, data, 0o640))
	then := time.Unix(1_700_000_000, 123_456_789)
	require.NoError(t, os.Chtimes(name, then, then))
}

// RequireNames requires that a folder contain exactly the given files, and no parts or journals.
func RequireNames(t *testing.T, folder string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	require.Equal(t, want, got)
}
