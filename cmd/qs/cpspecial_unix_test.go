//go:build unix

package main

import (
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCpReplacesFilesOnly checks that a device, a pipe, a socket or a link at the destination is
// not replaced, on either side, and the error names its type.
func TestCpReplacesFilesOnly(t *testing.T) {
	t.Parallel()
	here, _ := os.MkdirTemp("", "cp") // a socket's name is short
	t.Cleanup(func() { _ = os.RemoveAll(here) })
	src := filepath.Join(t.TempDir(), "f")
	writeFile(t, src, noise(1000))
	require.NoError(t, syscall.Mkfifo(filepath.Join(here, "pipe"), 0o600))
	l, err := net.Listen("unix", filepath.Join(here, "socket"))
	require.NoError(t, err)
	defer l.Close()
	writeFile(t, filepath.Join(here, "file"), []byte("old"))
	require.NoError(t, os.Symlink(filepath.Join(here, "file"), filepath.Join(here, "absolute")))
	require.NoError(t, os.Symlink("file", filepath.Join(here, "relative")))
	want := map[string]string{
		"pipe": `pipe is a pipe \(FIFO\) and is not replaced; use another name`, "socket": `socket is a socket and is not replaced`,
		"absolute": `absolute is a symbolic link that is not followed .*; use its target, or remove it`,
		"relative": `relative is a symbolic link; use its target, or remove the link`,
	}
	if mknod(filepath.Join(here, "null")) == nil { // for root only
		want["null"] = `null is a device and is not replaced`
	}
	modes := map[string]os.FileMode{}
	for name := range want {
		info, err := os.Lstat(filepath.Join(here, name))
		require.NoError(t, err)
		modes[name] = info.Mode()
	}
	far := serve(t, "", "-root", here, "-write")
	near := serve(t, "", "-root", filepath.Dir(src))
	for name, text := range want {
		for code, args := range map[int][]string{exitFailed: {near.addr + "/f", filepath.Join(here, name)}, exitHandler: {src, far.addr + "/" + name}} {
			require.Regexp(t, text, run(t, code, cpArgs(args...)...).errors.String())
			info, err := os.Lstat(filepath.Join(here, name))
			require.NoError(t, err)
			require.Equal(t, modes[name], info.Mode(), name)
		}
	}
	require.Equal(t, "old", readFile(t, filepath.Join(here, "file")))
	names, err := os.ReadDir(here)
	require.NoError(t, err)
	require.Len(t, names, len(want)+1, "nothing is left behind")
}
