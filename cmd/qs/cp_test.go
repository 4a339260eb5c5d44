package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/files"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
	"github.com/quicksilver-rpc/quicksilver/na"
)

const (
	testPiece = 64 << 10
	mapFrom   = 1 << 20 // the length from which on files are mapped
	bite      = 1 << 20 // of a piece that is pulled
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// cpArgs is qs cp with small pieces.
func cpArgs(args ...string) []string {
	return append([]string{"cp", "-piece", fmt.Sprint(testPiece)}, args...)
}

// TestCpSizes checks that a file is copied up and down again with its bytes, mode and time.
func TestCpSizes(t *testing.T) {
	s := serveFiles(t, "")
	dir := t.TempDir()
	for _, size := range []int{0, 1, 5000, testPiece - 1, testPiece, testPiece + 1, 7*testPiece + 13, mapFrom - 1, mapFrom, 3*mapFrom + 13} {
		for _, sha := range []string{"-sha256=false", "-sha256"} {
			name := fmt.Sprintf("f %d%s", size, sha)
			src, back := filepath.Join(dir, name), filepath.Join(dir, "back", name)
			writeFile(t, src, noise(size))
			out := run(t, 0, cpArgs(sha, src, s.addr+"/"+name)...).out.String()
			sum := fmt.Sprintf("crc32c:%08x", crc32.Checksum(noise(size), castagnoli))
			if sha == "-sha256" {
				sum = "sha256:[0-9a-f]{64}"
			}
			require.Regexp(t, `^1 file, .* in .* s, \d+ MiB/s, verified; `+sum+`\n$`, out)
			requireFile(t, src, filepath.Join(s.root, name))
			require.NoError(t, os.MkdirAll(filepath.Dir(back), 0o777))
			run(t, 0, cpArgs(sha, s.addr+"/"+name, back)...)
			requireFile(t, src, back)
			require.NoError(t, os.RemoveAll(filepath.Dir(back)))
			require.NoError(t, os.Remove(filepath.Join(s.root, name)))
			requireNames(t, s.root)
		}
	}
}

// TestCpLarge checks pieces of the usual size, written in several parts, of which the last is
// short.
func TestCpLarge(t *testing.T) {
	s := serveFiles(t, "")
	src := filepath.Join(t.TempDir(), "f")
	writeFile(t, src, noise(4*4<<20+2*bite+5))
	run(t, 0, "cp", src, s.addr+"/f")
	requireFile(t, src, filepath.Join(s.root, "f"))
	run(t, 0, "cp", "-sha256", "-window", "1", s.addr+"/f", src+".back")
	requireFile(t, src, src+".back")
}

func TestCpJSON(t *testing.T) {
	s := serveFiles(t, "")
	src := filepath.Join(t.TempDir(), "f")
	data := noise(3*testPiece + 1)
	writeFile(t, src, data)
	copyJSON := func(args ...string) (r copyResult) {
		q := run(t, 0, cpArgs(append([]string{"-json"}, args...)...)...)
		require.NoError(t, json.Unmarshal(q.out.Bytes(), &r), "%s", &q.out)
		require.Empty(t, q.errors.String())
		require.Positive(t, r.Seconds)
		require.InDelta(t, float64(r.Bytes)/(1<<20)/r.Seconds, r.Rate, 1e-6)
		r.Seconds, r.Rate = 0, 0
		return r
	}
	want := copyResult{Bytes: int64(len(data)), Files: 1, Checksum: fmt.Sprintf("crc32c:%08x", crc32.Checksum(data, castagnoli))}
	require.Equal(t, want, copyJSON(src, s.addr+"/f"))
	require.Equal(t, copyResult{Same: 1}, copyJSON(src, s.addr+"/f"), "it is there already")
	require.Equal(t, want, copyJSON("-anew", src, s.addr+"/f"))
	require.Equal(t, want, copyJSON(s.addr+"/f", src+".back"))
	require.Equal(t, copyResult{Same: 1}, copyJSON(s.addr+"/f", src+".back"))
}

// TestCpTree checks a directory with everything in it, copied up and down twice.
func TestCpTree(t *testing.T) {
	s := serveFiles(t, "")
	dir := t.TempDir()
	src := filepath.Join(dir, "a tree")
	files := map[string]int{"one": 1, "empty": 0, "sub dir/ two ": 2 * testPiece, "sub dir/deeper/größe": 77}
	for name, size := range files {
		writeFile(t, filepath.Join(src, name), noise(size))
	}
	require.NoError(t, os.Mkdir(filepath.Join(src, "hollow"), 0o750))
	require.NoError(t, os.Symlink("one", filepath.Join(src, "link")))
	requireTree := func(got string) {
		t.Helper()
		requireNames(t, got, "empty", "hollow", "one", "sub dir")
		requireNames(t, filepath.Join(got, "sub dir"), " two ", "deeper")
		for name := range files {
			requireFile(t, filepath.Join(src, name), filepath.Join(got, name))
		}
	}
	q := run(t, 0, cpArgs(src, s.addr+"/new/copy")...)
	require.Regexp(t, `^4 files, 128 KiB in .*; left out: 1\n$`, q.out.String())
	require.Contains(t, q.errors.String(), "a tree/link is a symbolic link: left out\n")
	requireTree(filepath.Join(s.root, "new", "copy"))

	require.NoError(t, os.Remove(filepath.Join(s.root, "new", "copy", "one")))
	q = run(t, 0, cpArgs(src, s.addr+"/new/copy")...)
	require.Regexp(t, `^1 file, 1 B in .*; 3 files unchanged \(same size, time and mode\); left out: 1\n$`, q.out.String())
	requireTree(filepath.Join(s.root, "new", "copy"))

	run(t, 0, cpArgs(src, s.addr+"/")...) // into the root
	requireTree(filepath.Join(s.root, "a tree"))

	run(t, 0, cpArgs(s.addr+"/new/copy", filepath.Join(dir, "back"))...)
	requireTree(filepath.Join(dir, "back"))
	run(t, 0, cpArgs(s.addr+"/a tree", filepath.Join(dir, "into")+"/")...)
	requireTree(filepath.Join(dir, "into", "a tree"))
}

// TestCpInto checks the destination path of a file.
func TestCpInto(t *testing.T) {
	s := serveFiles(t, "")
	dir := t.TempDir()
	src := filepath.Join(dir, "f")
	writeFile(t, src, noise(10))
	require.NoError(t, os.Mkdir(filepath.Join(s.root, "there"), 0o777))
	for to, want := range map[string]string{
		"":        "f",
		"g":       "g",
		"there":   "there/f",
		"there/h": "there/h",
		"made/":   "made/f",
	} {
		run(t, 0, cpArgs(src, s.addr+"/"+to)...)
		requireFile(t, src, filepath.Join(s.root, want))
	}
	q := run(t, exitUsage, cpArgs(src, s.addr+"/missing/f")...)
	require.Regexp(t, `there is no directory missing below the root; qs cp`, q.errors.String())
	run(t, 0, cpArgs(s.addr+"/there/h", dir)...)
	requireFile(t, src, filepath.Join(dir, "h"))
	q = run(t, exitUsage, cpArgs(s.addr+"/nothing", dir)...)
	require.Regexp(t, `(?m)^qs cp: copy tcp://.*/nothing: nothing: file does not exist\n$`, q.errors.String())
	require.NoError(t, os.Mkdir(filepath.Join(dir, "d"), 0o777))
	require.NoError(t, os.MkdirAll(filepath.Join(s.root, "there", "d", "f"), 0o777))
	q = run(t, exitHandler, cpArgs(src, s.addr+"/there/d")...)
	require.Regexp(t, `there/d/f is a directory; add a trailing / to copy into it`, q.errors.String())
}

// TestCpStaysInside checks that no path and no link leads out of the root, for reading or writing.
func TestCpStaysInside(t *testing.T) {
	parent := t.TempDir()
	root := filepath.Join(parent, "root")
	require.NoError(t, os.Mkdir(root, 0o777))
	secret := filepath.Join(parent, "secret")
	writeFile(t, secret, []byte("secret"))
	require.NoError(t, os.Symlink("..", filepath.Join(root, "up")))
	require.NoError(t, os.Symlink(secret, filepath.Join(root, "absolute")))
	require.NoError(t, os.Symlink("../new", filepath.Join(root, "dangling")))
	s := serve(t, "", "-root", root, "-write")
	src := filepath.Join(t.TempDir(), "f")
	writeFile(t, src, []byte("evil"))
	before, err := os.ReadDir(parent)
	require.NoError(t, err)

	for _, path := range []string{"../secret", "a/../../secret", "/" + secret, "up/secret", "absolute"} {
		back := filepath.Join(t.TempDir(), "back")
		q := newQS(t, cpArgs(s.addr+"/"+path, back)...).start()
		<-q.ended
		require.Contains(t, []int{exitUsage, exitHandler}, q.code, "the second is of the system")
		require.Regexp(t, `is outside of the root|escapes from parent`, q.errors.String(), path)
		require.NoFileExists(t, back)
	}
	for _, path := range []string{"../new", "a/../../new", "/" + parent + "/new", "up/new", "up/", "../", "up/newdir/", "dangling"} {
		q := newQS(t, cpArgs(src, s.addr+"/"+path)...).start()
		<-q.ended
		require.Contains(t, []int{exitUsage, exitHandler}, q.code, "the second is of the system")
		require.Regexp(t, `is outside of the root|escapes from parent`, q.errors.String(), path)
	}
	after, err := os.ReadDir(parent)
	require.NoError(t, err)
	require.Len(t, after, len(before))
	data, err := os.ReadFile(secret)
	require.NoError(t, err)
	require.Equal(t, "secret", string(data))
}

// TestCpPipes checks that - is the standard input and output, and that the output holds only the
// data.
func TestCpPipes(t *testing.T) {
	t.Parallel()
	s := serveFiles(t, "")
	data := noise(5*testPiece + 13)
	q := newQS(t, cpArgs("-", s.addr+"/f")...)
	q.cmd.Stdin = bytes.NewReader(data)
	require.Regexp(t, `^1 file, 320 KiB in .*; crc32c:`, q.start().wait(0).out.String())
	require.Equal(t, string(data), readFile(t, filepath.Join(s.root, "f")))
	for _, flags := range [][]string{nil, {"-json"}} {
		q = run(t, 0, cpArgs(append(flags, s.addr+"/f", "-")...)...)
		require.True(t, bytes.Equal(data, q.out.Bytes()))
		require.Regexp(t, `^1 file, 320 KiB in |^\{"bytes":327693,`, q.errors.String())
	}
	require.Contains(t, run(t, exitUsage, cpArgs("-", s.addr+"/")...).errors.String(), "needs the name of a file")
	require.Contains(t, run(t, exitUsage, cpArgs(s.addr+"/none", "-")...).errors.String(), "none: file does not exist")
	require.NoFileExists(t, "-")
	require.NoError(t, os.Mkdir(filepath.Join(s.root, "d"), 0o777))
	require.Contains(t, run(t, exitFailed, cpArgs("-", s.addr+"/d")...).errors.String(), "d is a directory, want a file")
}

// TestCpPipeInterrupt checks that Ctrl-C ends a copy with an idle input, and leaves no file.
func TestCpPipeInterrupt(t *testing.T) {
	t.Parallel()
	s := serveFiles(t, "")
	q := newQS(t, cpArgs("-json", "-", s.addr+"/f")...)
	stdin, err := q.cmd.StdinPipe()
	require.NoError(t, err)
	q.start()
	_, err = stdin.Write(noise(testPiece))
	require.NoError(t, err)
	waitUntil(t, "the first piece", func() bool {
		info, err := os.Stat(filepath.Join(s.root, "f.qs-part"))
		return err == nil && info.Size() > 0
	})
	require.NoError(t, q.cmd.Process.Signal(os.Interrupt))
	q.wait(exitInterrupted)
	requireSchema(t, "error", q.errors.Bytes())
	var e struct{ Error errorReport }
	require.NoError(t, json.Unmarshal(q.errors.Bytes(), &e))
	require.Equal(t, "copy -: interrupted", e.Error.Message)
	require.Equal(t, "nothing; "+s.addr+"/f was not touched", e.Error.Kept)
	waitUntil(t, "that the part is gone", func() bool { return !fileExists(filepath.Join(s.root, "f.qs-part"))() })
	requireNames(t, s.root)
}

func TestCpRefused(t *testing.T) {
	src := filepath.Join(t.TempDir(), "f")
	writeFile(t, src, noise(10))

	none := serve(t, "")
	for _, args := range [][]string{{src, none.addr + "/f"}, {none.addr + "/f", src + ".back"}} {
		q := run(t, exitUsage, cpArgs(args...)...)
		require.Regexp(t, `: tcp://\S+ does not serve this method; start it with qs serve of the same version, for files with --root DIR\n$`, q.errors.String())
	}

	root := t.TempDir()
	writeFile(t, filepath.Join(root, "f"), noise(10))
	readOnly := serve(t, "", "-root", root)
	for _, to := range []string{"g", "newdir/"} {
		require.Regexp(t, `"exit_code":2,.*"fate":"did_not_run"`, run(t, exitUsage, cpArgs("-json", src, readOnly.addr+"/"+to)...).errors.String())
		q := run(t, exitUsage, cpArgs(src, readOnly.addr+"/"+to)...)
		require.Regexp(t, `target: the target is read-only; start it with qs serve --root DIR --write: permission denied\n$`, q.errors.String())
	}
	requireNames(t, root, "f")
	w := serveFiles(t, "")
	require.Regexp(t, `^qs cp: .*: there is no directory no/dir below the root; qs cp `+src+` `+w.addr+`/no/dir/ creates it\n$`, run(t, exitUsage, cpArgs(src, w.addr+"/no/dir/x")...).errors.String())
	run(t, 0, cpArgs(src, w.addr+"/no/dir/", "-r")...)
	require.Equal(t, "1 file unchanged (same size, time and mode); nothing copied\n", run(t, 0, cpArgs(src, w.addr+"/no/dir/")...).out.String())
	run(t, 0, cpArgs(readOnly.addr+"/f", src+".back")...)
	requireFile(t, filepath.Join(root, "f"), src+".back")

	q := run(t, exitNotRun, cpArgs(src, "tcp://127.0.0.1:1/f")...)
	require.Regexp(t, `tcp://127.0.0.1:1 cannot be reached: connect: connection refused\n`, q.errors.String())
}

// TestCpErrorOffersResume checks that an error offers to resume the copy only if there is a part,
// and has the exit code for a retry only if a retry can help.
func TestCpErrorOffersResume(t *testing.T) {
	const again = "\n  to do:  run the same command again"
	for _, c := range []struct {
		err    error
		did    files.Counts
		stream bool
		code   int
		want   string
	}{
		{na.ErrPeerLost, files.Counts{}, false, exitNotRun, again},
		{na.ErrPeerLost, files.Counts{Bytes: 1}, false, exitNotRun, again + ": it resumes"},
		{na.ErrTimeout, files.Counts{Resumed: 1}, false, exitNotRun, again + ": it resumes"},
		{na.ErrPeerLost, files.Counts{}, true, exitNotRun, again},
		{na.ErrPeerLost, files.Counts{Bytes: 1}, true, exitFailed, ""},
		{na.ErrUnreachable, files.Counts{}, false, exitNotRun, ""},
		{na.ErrPermission, files.Counts{Bytes: 1}, false, exitFailed, ""},
		{na.ErrPermission, files.Counts{}, false, exitFailed, ""},
		{files.ErrNoSource, files.Counts{}, false, exitUsage, ""},
		{na.ErrChecksum, files.Counts{Bytes: 1}, false, exitFailed, ""},
	} {
		err := newCopyError(c.err, c.did, c.stream, "")
		require.Equal(t, c.err.Error()+c.want, show.Error(err))
		require.Equal(t, c.code, (&app{}).exitCode(err), "%v %v", c.err, c.did)
	}
}
