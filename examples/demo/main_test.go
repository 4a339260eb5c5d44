package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

// runEnv makes the test binary be the program, so that what runs is built as the test is, with -race too.
const runEnv = "QUICKSILVER_DEMO_RUN"

func TestMain(m *testing.M) {
	if os.Getenv(runEnv) != "" {
		main()
	}
	leak.Main(m)
}

// command returns the program with its arguments. It is bounded, and Wait fails if a process is left that holds its
// output open: the target, if any.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 90*time.Second)
	t.Cleanup(stop)
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), runEnv+"=1")
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// expected are the lines of a run with a small file, in order, between others.
var expected = []string{
	`^start: the target is process \d+ at (tcp://127\.0\.0\.1:\d+|udp://127\.0\.0\.1:\d+|sm://[0-9a-f-]+)$`,
	`^ +1000² = 1000000$`,
	`^ +100 %  `,
	`^ +SHA-256 there ([0-9a-f]{16})…, here ([0-9a-f]{16})…$`,
	`^ +canceled after [0-9.]+ MiB$`,
	`^ +no answer in 500ms, although the target has the request$`,
	`^ +hg: forward demo/hold to (tcp://127\.0\.0\.1:\d+|udp://127\.0\.0\.1:\d+|sm://[0-9a-f-]+): operation canceled \(may have run, after .*\)$`,
	`^ +errors\.Is\(err, context\.Canceled\): true, the request may have run$`,
	`^ +the same handle again: "here I am"; late answers dropped: 1, peers connected: 1$`,
	`^ +OnFault: lost (tcp://127\.0\.0\.1:\d+|udp://127\.0\.0\.1:\d+|sm://[0-9a-f-]+)$`,
	`^STEP +WHAT HAPPENED +TOOK$`,
	`^start +the target is process .* ms$`,
	`^calls +1000 calls with callbacks over 16 handles, sum of the squares 333833500 .* ms$`,
	`^pull +.* pulled by the target, SHA-256 equal at both ends .* ms$`,
	`^stop +pull canceled by the target after .* of .* ms$`,
	`^cancel +canceled after 500ms, forwarded again with success, late answer dropped, 1 peer .* ms$`,
	`^kill +peer lost, the request may have run; .* ms$`,
	`^end +0 handles, 0 regions and 0 operations left .* ms$`,
	`^all well .* ms$`,
}

func requireLines(t *testing.T, got string, want []string) {
	t.Helper()
	lines := strings.Split(got, "\n")
	for _, w := range want {
		re := regexp.MustCompile(w)
		for !re.MatchString(lines[0]) {
			lines = lines[1:]
			require.NotEmpty(t, lines, "got\n%s\nwant a line (after those wanted before it) that matches %s", got, w)
		}
	}
}

func TestDemo(t *testing.T) {
	t.Parallel()
	for i, size := range []int{0, 5, 300_001, 5<<20 + 17} {
		transport := []string{"tcp", "udp", "sm"}[i%3]
		if transport == "sm" && runtime.GOOS != "linux" {
			transport = "tcp"
		}
		t.Run(fmt.Sprint(transport, size), func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "file")
			data := make([]byte, size)
			_, _ = rand.NewChaCha8([32]byte{}).Read(data)
			require.NoError(t, os.WriteFile(file, data, 0o600))
			cmd := command(t, "-transport", transport, file)
			var errs bytes.Buffer
			cmd.Stderr = &errs
			out, err := cmd.Output()
			require.NoError(t, err, "%s\n%s", out, &errs)
			require.Empty(t, errs.String())
			requireLines(t, string(out), expected)
		})
	}
}

// TestWithoutFile runs it as people do: the program's own binary, at least 64 MiB of it.
func TestWithoutFile(t *testing.T) {
	t.Parallel()
	out, err := command(t).CombinedOutput()
	require.NoError(t, err, "%s", out)
	requireLines(t, string(out), expected)
	require.Regexp(t, `pull +(6[4-9]|[7-9]\d|\d{3,})\.\d MiB pulled by the target`, string(out))
}

func TestMistakes(t *testing.T) {
	var exit *exec.ExitError
	out, err := command(t, filepath.Join(t.TempDir(), "missing")).CombinedOutput()
	require.True(t, errors.As(err, &exit), "%v", err)
	require.Equal(t, 1, exit.ExitCode())
	require.Regexp(t, `^demo: open .*missing: `, string(out))

	out, err = command(t, "a", "b").CombinedOutput()
	require.True(t, errors.As(err, &exit), "%v", err)
	require.Equal(t, 2, exit.ExitCode())
	require.Equal(t, "usage: demo [-transport scheme] [file]\n", string(out))
}

// TestOrphan kills the origin in the middle: the target must not outlive it.
func TestOrphan(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte("x"), 0o600))
	cmd := command(t, file)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	held, stderr, err := os.Pipe() // both processes hold stderr open: it ends when both are gone
	require.NoError(t, err)
	defer held.Close()
	cmd.Stderr = stderr
	require.NoError(t, cmd.Start())
	require.NoError(t, stderr.Close())

	out := bufio.NewReader(stdout)
	for line := ""; !strings.HasPrefix(line, "cancel:"); {
		line, err = out.ReadString('\n')
		require.NoError(t, err)
	}
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	require.NoError(t, held.SetReadDeadline(time.Now().Add(30*time.Second)))
	_, err = io.Copy(io.Discard, held)
	require.NoError(t, err, "the target is still there")
}

func TestTargetEndsWithItsStdin(t *testing.T) {
	cmd := command(t)
	cmd.Env = append(cmd.Env, targetEnv+"=tcp")
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	require.Regexp(t, `^listening at tcp://127\.0\.0\.1:\d+\n$`, line)
	require.NoError(t, stdin.Close())
	require.NoError(t, cmd.Wait())
}

var percents = regexp.MustCompile(`\d+ %  [0-9.]+ \w+`)

func TestBar(t *testing.T) {
	var out strings.Builder
	b := &bar{out: &out, total: 200}
	for _, n := range []int64{0, 10, 19, 20, 39, 65, 70, 69, 199, 200, 200} {
		b.show(n)
	}
	require.Equal(t, []string{"10 %  20 bytes", "30 %  65 bytes", "90 %  199 bytes", "100 %  200 bytes"}, percents.FindAllString(out.String(), -1))

	out.Reset()
	b = &bar{out: &out, total: 200, terminal: true}
	for _, n := range []int64{1, 2, 3, 100, 200} {
		b.show(n)
	}
	require.Equal(t, []string{"1 %  2 bytes", "50 %  100 bytes", "100 %  200 bytes"}, percents.FindAllString(out.String(), -1))
	lines := strings.Split(strings.TrimSuffix(strings.TrimPrefix(out.String(), "\r"), "\n"), "\r")
	for _, l := range lines {
		require.Len(t, l, len(lines[0]), "each line must cover the one before")
	}

	out.Reset()
	(&bar{out: &out}).show(0) // an empty file
	require.Equal(t, []string{"100 %  0 bytes"}, percents.FindAllString(out.String(), -1))
}
