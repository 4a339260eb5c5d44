//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// An interruptedCopy transfer is one that halts at the side that receives, when half of the file is verified.
type interruptedCopy struct {
	t        *testing.T
	src, dst string
	data     []byte
	stalled  string // the file that is there while it halts
	server   *server
	origin   *process
	root     string
	download bool
}

const brokenSize = 40*testPiece + 5

// startInterruptedCopy begins a transfer and returns when it halts.
func startInterruptedCopy(t *testing.T, download bool, serveFlags ...string) *interruptedCopy {
	t.Helper()
	b := &interruptedCopy{t: t, data: noise(brokenSize), stalled: filepath.Join(t.TempDir(), "stalled"), root: t.TempDir(), download: download}
	there, here := filepath.Join(b.root, "f"), filepath.Join(t.TempDir(), "f")
	b.src, b.dst = here, there
	if download {
		b.src, b.dst = there, here
	}
	writeFile(t, b.src, b.data)
	env := fmt.Sprintf("%s=%d:%s", stallEnv, brokenSize/2, b.stalled)
	serverEnv := env
	if download {
		serverEnv = ""
	}
	b.server = serve(t, serverEnv, append(serveFlags, "-root", b.root, "-write")...)
	b.origin = newQS(t, b.args("-peer-timeout", "500ms")...)
	if download {
		b.origin.cmd.Env = append(b.origin.cmd.Env, env)
	}
	b.origin.start()
	waitUntil(t, "half of the file", fileExists(b.stalled))
	return b
}

// args copy the file, with the server there is now.
func (b *interruptedCopy) args(more ...string) []string {
	from, to := b.src, b.server.addr+"/f"
	if b.download {
		from, to = to, b.dst
	}
	return cpArgs(append(more, from, to)...)
}

// keptPattern returns a regular expression for the line of an error about the part that was kept.
func (b *interruptedCopy) keptPattern() string {
	in := regexp.QuoteMeta(filepath.Dir(b.dst))
	if !b.download {
		in = b.server.addr
	}
	return `  kept:   [0-9.]+ [KM]iB of 2\.50 MiB in ` + in + `/f\.qs-part; ` + in + `/f was not touched\n`
}

// continueStalled lets the halted side continue, if it is still running.
func (b *interruptedCopy) continueStalled() { require.NoError(b.t, os.Remove(b.stalled)) }

// restartServer serves the same files by another process.
func (b *interruptedCopy) restartServer() { b.server = serve(b.t, "", "-root", b.root, "-write") }

// resume runs the command again, requires the whole file, and returns the output.
func (b *interruptedCopy) resume(args ...string) (r copyResult, notes string) {
	b.t.Helper()
	q := run(b.t, 0, b.args(append(args, "-json")...)...)
	require.NoError(b.t, json.Unmarshal(q.out.Bytes(), &r))
	requireFile(b.t, b.src, b.dst)
	requireNames(b.t, filepath.Dir(b.dst), "f")
	return r, q.errors.String()
}

// requireResumed wants at least half of the file not to have been moved again.
func (b *interruptedCopy) requireResumed(args ...string) {
	b.t.Helper()
	r, notes := b.resume(args...)
	require.GreaterOrEqual(b.t, r.Resumed, int64(brokenSize/2))
	require.EqualValues(b.t, brokenSize, r.Resumed+r.Bytes)
	require.Equal(b.t, 1, r.Files)
	require.Empty(b.t, notes)
	if len(args) == 0 {
		require.Equal(b.t, checksum(b.data), r.Checksum)
	}
}

func checksum(b []byte) string { return fmt.Sprintf("crc32c:%08x", crc32.Checksum(b, castagnoli)) }

func eachDirection(t *testing.T, test func(t *testing.T, download bool)) {
	t.Run("up", func(t *testing.T) { test(t, false) })
	t.Run("down", func(t *testing.T) { test(t, true) })
}

func TestResumeAfterKilledTarget(t *testing.T) {
	eachDirection(t, func(t *testing.T, download bool) {
		b := startInterruptedCopy(t, download)
		b.server.kill()
		b.continueStalled()
		b.origin.wait(exitNotRun)
		require.Regexp(t, `^qs cp: copy \S+: `+b.server.addr+` (was lost: connection|cannot be reached: connect: connection refused)[^\0]*\n`+b.keptPattern()+`  to do:  run the same command again: it resumes\n$`, b.origin.errors.String())
		b.restartServer()
		b.requireResumed()
	})
}

// TestResumeAfterKilledOrigin checks that the same target resumes with a new origin, or another
// target does.
func TestResumeAfterKilledOrigin(t *testing.T) {
	eachDirection(t, func(t *testing.T, download bool) {
		b := startInterruptedCopy(t, download)
		require.NoError(t, b.origin.cmd.Process.Kill())
		b.origin.wait(-1)
		b.continueStalled()
		b.requireResumed("-sha256")
	})
}

// TestResumeAfterInterrupt checks that Ctrl-C ends the command at once and keeps the part.
func TestResumeAfterInterrupt(t *testing.T) {
	t.Parallel()
	eachDirection(t, func(t *testing.T, download bool) {
		b := startInterruptedCopy(t, download)
		require.NoError(t, b.origin.cmd.Process.Signal(os.Interrupt))
		b.origin.wait(exitInterrupted) // it ends by itself if it is the halted side
		require.Regexp(t, `(?m)^qs cp: copy .*: interrupted\n`+b.keptPattern()+`  to do:  run the same command again: it resumes\n$`, b.origin.errors.String())
		if !download {
			b.continueStalled()
		}
		require.NoFileExists(t, b.dst)
		b.requireResumed()
	})
}

// TestSecondCopyRefused checks that a copy to a file that another copy is writing is refused, and the
// first one continues.
func TestSecondCopyRefused(t *testing.T) {
	t.Parallel()
	eachDirection(t, func(t *testing.T, download bool) {
		b := startInterruptedCopy(t, download)
		for range 2 { // nor did the first refusal change anything
			q := run(t, exitNotRun, b.args("-anew")...)
			require.Regexp(t, `: f is being written by another copy( from 127\.0\.0\.1:\d+)?: `+
				`.*\n  to do:  wait for that, then run the same command again\n$`, q.errors.String())
		}
		b.continueStalled()
		b.origin.wait(0)
		requireFile(t, b.src, b.dst)
		requireNames(t, filepath.Dir(b.dst), "f")
	})
}

// TestStoppedTarget checks that a target that is stopped in the middle is given up after the peer
// timeout, without a busy wait.
func TestStoppedTarget(t *testing.T) {
	t.Parallel()
	b := startInterruptedCopy(t, false)
	requireEnds(t, b.origin, exitNotRun, func() {
		require.NoError(t, b.server.cmd.Process.Signal(syscall.SIGSTOP))
	})
	require.Regexp(t, `was lost: the peer was silent for 500ms.*\n`+b.keptPattern()+`  to do:  run the same command again: it resumes\n$`, b.origin.errors.String())
	b.server.kill()
	b.restartServer()
	b.requireResumed()
}

// TestStuckTarget checks that a target that is alive and makes no progress is given up after
// -timeout.
func TestStuckTarget(t *testing.T) {
	t.Parallel()
	b := startInterruptedCopy(t, false)
	require.NoError(t, b.origin.cmd.Process.Kill())
	b.origin.wait(-1)
	q := run(t, exitNotRun, b.args("-timeout", "300ms")...)
	require.Regexp(t, `did not answer qs/file/open within 300ms\n  to do:  run the same command again\n$`, q.errors.String())
	b.continueStalled()
	b.requireResumed()
}

// TestFrozenOrigin checks that an origin that is stopped while the target pulls from it does not
// hold up another one, although the target will not give it up for a long time: the transfer is
// canceled.
func TestFrozenOrigin(t *testing.T) {
	b := startInterruptedCopy(t, false, "-peer-timeout", "1h")
	require.NoError(t, b.origin.cmd.Process.Signal(syscall.SIGSTOP))
	b.continueStalled()
	b.requireResumed("-timeout", "5s", "-sha256=false")
}

// TestServeEnds checks that a target that gets SIGTERM cancels the requests in flight, and ends.
func TestServeEnds(t *testing.T) {
	eachDirection(t, func(t *testing.T, download bool) {
		b := startInterruptedCopy(t, download)
		require.NoError(t, b.server.cmd.Process.Signal(syscall.SIGTERM))
		// it ends by itself if it is the halted side
		require.NoError(t, b.server.cmd.Wait(), "%s", &b.server.errors)
		if download {
			b.continueStalled()
		}
		b.origin.wait(exitNotRun)
		b.restartServer()
		b.requireResumed()
	})
}

func TestChangedSourceRestarts(t *testing.T) {
	eachDirection(t, func(t *testing.T, download bool) {
		b := startInterruptedCopy(t, download)
		require.NoError(t, b.origin.cmd.Process.Kill())
		b.origin.wait(-1)
		b.continueStalled()
		b.data = append([]byte("changed"), b.data[7:]...) // the same size
		writeFile(t, b.src, b.data)
		require.NoError(t, os.Chtimes(b.src, time.Time{}, time.Unix(1_800_000_000, 0)))
		r, notes := b.resume()
		require.Contains(t, notes, "f: the source has changed since the interrupted transfer; starting over\n")
		require.Zero(t, r.Resumed)
		require.EqualValues(t, brokenSize, r.Bytes)
		require.Equal(t, checksum(b.data), r.Checksum)
	})
}

// TestOtherSourceRestarts checks that another source, with the size and time of the part's source,
// is not joined to the part.
func TestOtherSourceRestarts(t *testing.T) {
	eachDirection(t, func(t *testing.T, download bool) {
		b := startInterruptedCopy(t, download)
		require.NoError(t, b.origin.cmd.Process.Kill())
		b.origin.wait(-1)
		b.continueStalled()
		b.data = append([]byte("changed"), b.data[7:]...)
		writeFile(t, b.src, b.data)
		r, notes := b.resume()
		require.Contains(t, notes, "f: the partial file is of another source; starting over\n")
		require.Zero(t, r.Resumed)
		require.EqualValues(t, brokenSize, r.Bytes)
		require.Equal(t, checksum(b.data), r.Checksum)
	})
}

// TestDamagedPart checks a part of which one verified byte was changed, or some are missing.
func TestDamagedPart(t *testing.T) {
	eachDirection(t, func(t *testing.T, download bool) {
		for name, damage := range map[string]func(f *os.File) error{
			"flipped": func(f *os.File) error {
				_, err := f.WriteAt([]byte{^noise(brokenSize)[testPiece+3]}, testPiece+3)
				return err
			},
			"short": func(f *os.File) error { return f.Truncate(testPiece) },
		} {
			t.Run(name, func(t *testing.T) {
				b := startInterruptedCopy(t, download)
				require.NoError(t, b.origin.cmd.Process.Kill())
				b.origin.wait(-1)
				b.server.kill()
				b.restartServer()
				part, err := os.OpenFile(b.dst+".qs-part", os.O_WRONLY, 0)
				require.NoError(t, err)
				require.NoError(t, damage(part))
				require.NoError(t, part.Close())
				r, notes := b.resume()
				require.Contains(t, notes, "f: the partial file is damaged; starting over\n")
				require.Zero(t, r.Resumed)
				require.Equal(t, checksum(b.data), r.Checksum)
			})
		}
	})
}

func TestAnewFlagDiscardsPart(t *testing.T) {
	b := startInterruptedCopy(t, false)
	require.NoError(t, b.origin.cmd.Process.Kill())
	b.origin.wait(-1)
	b.continueStalled()
	r, _ := b.resume("-anew")
	require.Zero(t, r.Resumed)
}

// waitForChange waits until the copy has failed because its source has changed. In a download, the
// target reports that (exitHandler), unless the data was changed while it was sent: then this side
// finds that the checksum of a piece is wrong (exitFailed).
func (b *interruptedCopy) waitForChange() {
	b.t.Helper()
	<-b.origin.ended
	codes := []int{exitFailed}
	if b.download {
		codes = append(codes, exitHandler)
	}
	require.Contains(b.t, codes, b.origin.code, "output:\n%s\nerrors:\n%s", &b.origin.out, &b.origin.errors)
}

// TestSourceTruncatedDuringCopy checks that missing pages of a mapped file end the transfer, and
// not the process.
func TestSourceTruncatedDuringCopy(t *testing.T) {
	require.Greater(t, brokenSize, mapFrom)
	eachDirection(t, func(t *testing.T, download bool) {
		b := startInterruptedCopy(t, download)
		require.NoError(t, os.Truncate(b.src, brokenSize/2+testPiece/2))
		b.continueStalled()
		b.waitForChange()
		require.Contains(t, b.origin.errors.String(), "f was modified during the copy; copy it again")
		require.NoFileExists(t, b.dst)
		r, _ := b.resume()
		require.Zero(t, r.Resumed)
		require.EqualValues(t, brokenSize/2+testPiece/2, r.Bytes)
	})
}

// TestSourceChangedDuringCopy checks that a file that is written to while it is copied does not
// become a file of old and new pieces.
func TestSourceChangedDuringCopy(t *testing.T) {
	eachDirection(t, func(t *testing.T, download bool) {
		b := startInterruptedCopy(t, download)
		writeFile(t, b.src, append([]byte("changed"), b.data...))
		b.continueStalled()
		b.waitForChange()
		require.Contains(t, b.origin.errors.String(), "f was modified during the copy; copy it again")
		require.NoFileExists(t, b.dst)
		r, _ := b.resume()
		require.Zero(t, r.Resumed)
	})
}

// TestBackslash checks that a name may contain \ on systems where that is not a separator.
func TestBackslash(t *testing.T) {
	s := serveFiles(t, "")
	writeFile(t, filepath.Join(s.root, "d", `a\b`), noise(10))
	back := filepath.Join(t.TempDir(), "back")
	run(t, 0, cpArgs(s.addr+"/d", back)...)
	requireNames(t, back, `a\b`)
	requireFile(t, filepath.Join(s.root, "d", `a\b`), filepath.Join(back, `a\b`))
	require.NoError(t, os.RemoveAll(filepath.Join(s.root, "d")))
	run(t, 0, cpArgs(back, s.addr+"/d")...)
	requireNames(t, filepath.Join(s.root, "d"), `a\b`)
}
