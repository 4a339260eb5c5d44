//go:build unix

package main

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// TestRun checks that five processes that a launcher starts together find and call each other, and
// leave.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	build := func(name, at, pkg string) string {
		cmd := exec.Command("go", "build", "-o", filepath.Join(dir, name), pkg)
		cmd.Dir = at
		text, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", text)
		return filepath.Join(dir, name)
	}
	members, launcher := build("members", ".", "."), build("qs", "../../../..", "./cmd/qs")
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	text, err := exec.CommandContext(ctx, launcher, "run", "-n", "5", "--", members, "-for", "1s").CombinedOutput()
	require.NoError(t, err, "%s", text)
	require.Equal(t, 5, strings.Count(string(text), "called all 5"), "%s", text)
}
