package filetest

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Noise returns n pseudorandom bytes. The result depends only on n.
func Noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n)}).Read(b)
	return b
}

// Write creates a file with fixed permissions and a fixed modification time. It also creates the
// file's parent directories.
func Write(t *testing.T, name string, data []byte) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o777))
	require.NoError(t, os.WriteFile(name, data, 0o640))
	then := time.Unix(1_700_000_000, 123_456_789)
	require.NoError(t, os.Chtimes(name, then, then))
}

// RequireNames fails the test unless folder contains exactly the entries want, which must be
// sorted.
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
