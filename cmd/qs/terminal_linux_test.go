package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// openTerminal returns both sides of a new terminal of 120 columns.
func openTerminal(t *testing.T) (screen, terminal *os.File) { return openTerminalColumns(t, 120) }

// openTerminalColumns returns both sides of a new terminal.
func openTerminalColumns(t *testing.T, columns uint16) (screen, terminal *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = screen.Close() })
	require.NoError(t, unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetWinsize(int(screen.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 25, Col: columns}))
	return screen, terminal
}

// TestProgressBar checks that on a terminal cp draws a bar, and notes stand above it.
func TestProgressBar(t *testing.T) {
	s := serveFiles(t, "")
	src := filepath.Join(t.TempDir(), "d")
	writeFile(t, filepath.Join(src, "f"), noise(5*testPiece))
	require.NoError(t, os.Symlink("f", filepath.Join(src, "link")))
	screen, terminal := openTerminal(t)
	q := newQS(t, cpArgs(src, s.addr+"/d")...)
	q.cmd.Env = append(q.cmd.Env, "TERM=xterm")
	q.cmd.Stderr = terminal
	q.start()
	require.NoError(t, terminal.Close())
	shown, _ := io.ReadAll(screen) // ends with an error once the terminal is closed in all processes
	<-q.ended
	require.Zero(t, q.code, "on the terminal:\n%s", shown)
	require.Regexp(t, `\[=+\].*100 %  320 KiB of 320 KiB, [0-9.]+ \w+/s, 0s left  d/f`, string(shown))
	require.Contains(t, string(shown), "d/link is a symbolic link: left out")
	require.Regexp(t, `^1 file, `, q.out.String())
}

// TestProgressBarDoesNotBlock checks that the goroutine that counts bytes does not hold a lock that
// the bar needs to draw itself.
func TestProgressBarDoesNotBlock(t *testing.T) {
	t.Setenv("TERM", "xterm")
	screen, terminal := openTerminal(t)
	go func() { _, _ = io.Copy(io.Discard, screen) }()
	for name, count := range map[string]func(p *progressDisplay){
		"add":  func(p *progressDisplay) { p.Add(1) },
		"skip": func(p *progressDisplay) { p.Skip(1) },
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newProgress(terminal, 2, false)
			decorators, err := p.bar.TraverseDecorators()
			require.NoError(t, err)
			was := false
			for range decorators { // the bar draws nothing, and takes no count
				go count(p)
				synctest.Wait() // until that waits for the bar
				was = p.mu.TryLock()
				if was {
					p.mu.Unlock()
				}
			}
			p.close()
			require.True(t, was, name)
		})
	}
	require.NoError(t, terminal.Close())
}

// TestProgressBarLastLine checks that the bar may be drawn again between its last byte and close,
// under the race detector.
func TestProgressBarLastLine(t *testing.T) {
	t.Setenv("TERM", "xterm")
	screen, terminal := openTerminal(t)
	go func() { _, _ = io.Copy(io.Discard, screen) }()
	synctest.Test(t, func(t *testing.T) {
		p := newProgress(terminal, 2, false)
		p.Add(2)
		pause(time.Second)
		p.close()
	})
	require.NoError(t, terminal.Close())
}

// TestBenchLine checks that on a terminal bench shows its progress, and removes it at the end.
func TestBenchLine(t *testing.T) {
	t.Parallel()
	s := serve(t, "")
	screen, terminal := openTerminal(t)
	q := newQS(t, "bench", "-d", "800ms", "-c", "1", "-raw", s.addr, "qs/echo", "hello")
	q.cmd.Env = append(q.cmd.Env, "TERM=xterm")
	q.cmd.Stderr = terminal
	q.start()
	require.NoError(t, terminal.Close())
	shown, _ := io.ReadAll(screen) // ends with an error once the terminal is closed in all processes
	q.wait(0)
	require.Regexp(t, `^\r\x1b\[K\d+\.\d s  \d+ calls  [0-9.]+/s now  p50 \S+ [µm]?s  p99 \S+ [µm]?s  0 failed  1 in flight`, string(shown))
	require.True(t, strings.HasSuffix(string(shown), "\r\x1b[K"))
}
