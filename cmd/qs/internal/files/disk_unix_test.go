//go:build unix

package files

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// TestPipes checks that a pipe below the root that has no writer is not waited for.
func TestPipes(t *testing.T) {
	d, dir := newDisk(t)
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	_, err := d.openSource("pipe", false)
	require.ErrorIs(t, err, na.ErrInvalid)
	_, err = d.list(t.Context(), "pipe", "")
	require.ErrorIs(t, err, syscall.ENOTDIR)
	requireNames(t, dir, "pipe")
}
