package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/files"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/filetest"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/self"
	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

// stallEnv makes a qs that receives a file halt when this many bytes are verified: "BYTES:FILE". It
// then creates FILE, and continues when FILE is removed, or it gets SIGTERM.
const stallEnv = "QUICKSILVER_QS_STALL"

// With this first argument the test binary is a program for qs run, where there are tests of it.
const programArg = "test-program"

var asProgram func(args []string) int

// TestMain makes the test binary act as qs, so that qs is built as the test is, with -race too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == programArg {
		os.Exit(asProgram(os.Args[2:]))
	}
	if os.Getenv(self.Env) == "" {
		leak.Main(m)
	}
	if at, file, ok := strings.Cut(os.Getenv(stallEnv), ":"); ok {
		stall(at, file)
	}
	os.Exit(start(os.Args[1:], os.Stdout, os.Stderr))
}

func stall(bytes, file string) {
	limit, err := strconv.ParseInt(bytes, 10, 64)
	if err != nil {
		panic(err)
	}
	onInterrupted = func() { _ = os.Remove(file) }
	files.Verified = func(at int64) {
		if at < limit {
			return
		}
		files.Verified = func(int64) {}
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			panic(err)
		}
		for range time.Tick(time.Millisecond) {
			if _, err := os.Stat(file); err != nil {
				return
			}
		}
	}
}

// patience limits the wait for an event.
const patience = 30 * time.Second

// A process is one that runs a command.
type process struct {
	t           *testing.T
	cmd         *exec.Cmd
	out, errors bytes.Buffer
	ended       chan struct{}
	code        int
}

// executable is the test's binary, which can be qs.
func executable(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	return path
}

// newQS returns a qs that has not been started. It is killed at the end of the test.
func newQS(t *testing.T, args ...string) *process {
	t.Helper()
	return newQSWithin(t, 2*patience, args...)
}

// newQSWithin is newQS with a limit for how long the command may run.
func newQSWithin(t *testing.T, limit time.Duration, args ...string) *process {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), limit)
	t.Cleanup(stop)
	q := &process{t: t, cmd: exec.CommandContext(ctx, executable(t), args...), ended: make(chan struct{})}
	// With -race each process would rest for a second before it ends.
	q.cmd.Env = append(os.Environ(), self.Env+"=1", "GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0")
	q.cmd.Stdout, q.cmd.Stderr = &q.out, &q.errors
	q.cmd.WaitDelay = patience
	return q
}

// start runs it in the background.
func (q *process) start() *process {
	q.t.Helper()
	require.NoError(q.t, q.cmd.Start())
	go func() {
		defer close(q.ended)
		_ = q.cmd.Wait()
		q.code = q.cmd.ProcessState.ExitCode()
	}()
	q.t.Cleanup(func() {
		_ = q.cmd.Process.Kill()
		<-q.ended
	})
	return q
}

// wait waits for its end; it must have the exit code.
func (q *process) wait(code int) *process {
	q.t.Helper()
	<-q.ended // bounded by newQS
	require.Equal(q.t, code, q.code, "output:\n%s\nerrors:\n%s", &q.out, &q.errors)
	return q
}

// hasEnded reports whether it has ended.
func (q *process) hasEnded() bool {
	select {
	case <-q.ended:
		return true
	default:
		return false
	}
}

// run runs a command to its end.
func run(t *testing.T, code int, args ...string) *process {
	t.Helper()
	return newQS(t, args...).start().wait(code)
}

// A server is a qs serve.
type server struct {
	*process
	addr, root string
	stdin      io.Closer
}

func serve(t *testing.T, env string, args ...string) *server {
	t.Helper()
	s := &server{process: newQS(t, append([]string{"serve", "-child"}, args...)...)}
	s.cmd.Env = append(s.cmd.Env, env)
	s.cmd.Stdout = nil
	stdin, err := s.cmd.StdinPipe()
	require.NoError(t, err)
	s.stdin = stdin
	stdout, err := s.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, s.cmd.Start())
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		if t.Failed() {
			t.Logf("serve printed: %s", &s.errors)
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err, "%s", &s.errors)
	s.addr = strings.TrimSpace(strings.TrimPrefix(line, self.Ready))
	return s
}

// serveFiles serves an empty folder that may be written to.
func serveFiles(t *testing.T, env string, args ...string) *server {
	t.Helper()
	root := t.TempDir()
	s := serve(t, env, append([]string{"-root", root, "-write"}, args...)...)
	s.root = root
	return s
}

func (s *server) kill() {
	s.t.Helper()
	require.NoError(s.t, s.cmd.Process.Kill())
	_ = s.cmd.Wait()
}

var noise, writeFile, requireNames = filetest.Noise, filetest.Write, filetest.RequireNames

// requireFile wants the same bytes, mode and time in two files.
func requireFile(t *testing.T, want, got string) {
	t.Helper()
	w, err := os.ReadFile(want)
	require.NoError(t, err)
	g, err := os.ReadFile(got)
	require.NoError(t, err)
	require.True(t, bytes.Equal(w, g), "%s is not what %s is", got, want)
	wi, err := os.Stat(want)
	require.NoError(t, err)
	gi, err := os.Stat(got)
	require.NoError(t, err)
	require.Equal(t, wi.Mode(), gi.Mode())
	require.Equal(t, wi.ModTime(), gi.ModTime())
}

func fileExists(name string) func() bool {
	return func() bool {
		_, err := os.Lstat(name)
		return !errors.Is(err, os.ErrNotExist)
	}
}

// waitUntil waits until is returns true.
func waitUntil(t *testing.T, what string, is func() bool) {
	t.Helper()
	require.Eventually(t, is, patience, time.Millisecond, what)
}

func TestMistakes(t *testing.T) {
	for _, c := range []struct {
		code int
		want string
		args []string
	}{
		{2, `(?s)^Calls, inspects, .*\nUsage:\n`, nil},
		{2, `^qs: unknown command "frobnicate" \(qs help lists the commands\)\n$`, []string{"frobnicate", "-x"}},
		{2, `^qs: unknown command "hlep"; did you mean help\? \(`, []string{"hlep"}},
		{2, `^qs: unknown command "LIST"; did you mean rpcs\? \(`, []string{"LIST"}},
		{2, `^qs: unknown command "nope" \(`, []string{"nope"}},
		{2, `^qs: unknown command "docs" \(`, []string{"docs"}},
		{2, `^qs completion: unknown command "tcsh" \(qs completion --help lists them\)\n$`, []string{"completion", "tcsh"}},
		{2, `^qs: unknown command "pign"; did you mean ping\? \(`, []string{"pign", "tcp://h:1", "-count", "1"}},
		{2, `^qs help: unknown command "sook"; did you mean soak\? \(`, []string{"help", "sook"}},
		{2, `^qs ping: unknown flag: --cuont; did you mean --count\? \(qs ping --help lists the flags\)\n$`, []string{"ping", "tcp://h:1", "--cuont", "1"}},
		{2, `^qs ping: unknown flag: --cuont; did you mean --count\? \(`, []string{"ping", "tcp://h:1", "-cuont", "1"}},
		{2, `^qs ping: unknown shorthand flag: 'x' in -x \(qs ping --help lists the flags\)\n$`, []string{"ping", "-x", "tcp://h:1"}},
		{2, `^qs ping: flag needs an argument: --count; usage: qs ping ADDRESS \[flags\]\n$`, []string{"ping", "tcp://h:1", "-count"}},
		{2, `^qs ping: 0 arguments; usage: qs ping ADDRESS \[flags\]\n$`, []string{"ping"}},
		{2, `^qs bench: unknown flag: --duration; did you mean --time\? \(`, []string{"bench", "--duration", "5s"}},
		{2, `^qs bench: --time is 5 without a unit: write 5ms or 5s\n$`, []string{"bench", "-d", "5"}},
		{2, `^qs perf: --transport is "foo", want .*tcp.* or auto\n$`, []string{"perf", "-transport", "foo"}},
		{2, `^qs soak: --transport is "foo", want `, []string{"soak", "-transport", "foo"}},
		{2, `^qs perf: foo://h:1: unknown transport "foo", want one of .*tcp`, []string{"perf", "-target", "foo://h:1"}},
		{2, `^qs serve: foo://h:1: unknown transport "foo"`, []string{"serve", "foo://h:1"}},
		{2, `^qs ping: foo://h:1: unknown transport "foo"`, []string{"ping", "foo://h:1"}},
		{2, `^qs call: foo://h:1: unknown transport "foo"`, []string{"call", "foo://h:1", "m"}},
		{2, `^qs bench: foo://h:1: unknown transport "foo"`, []string{"bench", "foo://h:1", "m"}},
		{2, `^qs info: foo://h:1: unknown transport "foo"`, []string{"info", "foo://h:1"}},
		{2, `^qs cp: "foo://h:1/x": foo://h:1: unknown transport "foo"`, []string{"cp", "x", "foo://h:1/x"}},
		{2, `^qs call: tcp://h:7119/greet: the address ends at the port; METHOD is the next argument\n$`, []string{"call", "tcp://h:7119/greet", "x"}},
		{2, `^qs rpcs: tcp://h:7119/greet: the address ends at the port`, []string{"rpcs", "h:7119/greet"}},
		{2, `^qs ping: .*has port "99999", want`, []string{"ping", "tcp://h:99999"}},
		{2, `^qs top: .*has port "99999", want`, []string{"top", "tcp://h:99999"}},
		{3, `^qs call: tcp://127\.0\.0\.1:1 cannot be reached`, []string{"call", "127.0.0.1:1", "m"}},
		{3, `^qs call: tcp://\[::1\]:1 cannot be reached`, []string{"call", "[::1]:1", "m"}},
		{2, `^qs ping: --timeout is 0s, want more than 0s\n$`, []string{"ping", "-timeout", "0", "tcp://h:1"}},
		{2, `^qs ping: "here" is not an address, want HOST:PORT or tcp://HOST:PORT\n$`, []string{"ping", "here"}},
		{2, `^qs ping: "127.0.0.1" has no port: write 127.0.0.1:PORT\n$`, []string{"ping", "127.0.0.1"}},
		{2, `^qs ping: "::1" has no port: write \[::1\]:PORT\n$`, []string{"ping", "::1"}},
		{2, `^qs ping: "udp://a.example" has no port: write udp://a.example:PORT\n$`, []string{"ping", "udp://a.example"}},
		{2, `^qs ping: ":1" has no host: write 127.0.0.1:1\n$`, []string{"ping", ":1"}},
		{2, `^qs serve: ":1" has no host: write 127.0.0.1:1, or 0.0.0.0:1 for all\n$`, []string{"serve", ":1"}},
		{2, `^qs: unknown command "ls"; did you mean rpcs\? \(qs rpcs lists methods; qs cp copies files, and no command lists them\)\n$`, []string{"ls", "tcp://h:1/"}},
		{2, `^qs mercury: "h:1" is not an address of C Mercury, want ofi\+tcp://IP:PORT\n$`, []string{"mercury", "h:1", "call", "x"}},
		{3, `^qs perf: tcp://nosuch.invalid:1: host nosuch.invalid was not found\n  to do:  correct the host`, []string{"perf", "-target", "nosuch.invalid:1"}},
		{2, `^qs top: --count is negative\n$`, []string{"top", "-n", "-1", "h:1"}},
		{2, `^qs top: --once prints one report, --count 3 more: give one of them\n$`, []string{"top", "--once", "--count", "3", "h:1"}},
		{2, `^qs top: --sort is "lat", .*; did you mean latency\?\n$`, []string{"top", "--sort", "lat", "h:1"}},
		{2, `^qs call: METHOD is missing \(qs rpcs h:1 lists them\)\n$`, []string{"call", "h:1"}},
		{2, `^qs bench: METHOD is missing \(qs rpcs h:1 lists them\)\n$`, []string{"bench", "h:1"}},
		{2, `^qs call: "Ada" is not JSON: invalid .*; a string needs quotes inside the shell's: '"Ada"'\n$`, []string{"call", "h:1", "greet", "Ada"}},
		{2, `^qs bench: "Ada" is not JSON: invalid .*; a string needs quotes inside the shell's: '"Ada"'\n$`, []string{"bench", "h:1", "greet", "Ada"}},
		{2, `^qs call: --timeout is 200 without a unit: write 200ms or 200s\n$`, []string{"call", "-t", "200", "h:1", "greet"}},
		{2, `^qs bench: --rate is "2k", want a number such as 2000 or 0\.5\n$`, []string{"bench", "--rate", "2k", "h:1", "m"}},
		{2, `^qs bench: --count is "many", want a whole number such as 2000\n$`, []string{"bench", "-n", "many", "h:1", "m"}},
		{2, `^qs bench: --time is "long", want a time such as 200ms or 5s\n$`, []string{"bench", "-d", "long", "h:1", "m"}},
		{2, `^qs bench: qs bench has no flag -r: the rate is -q or --rate, and input that is no JSON is --raw\n$`, []string{"bench", "-r", "2000", "h:1", "m"}},
		{2, `^qs bench: qs bench has no flag -z: the time of the run is -d\n$`, []string{"bench", "h:1", "m", "-z", "5s"}},
		{2, `^qs call: qs call has no flag -d: JSON is the argument behind METHOD, without a flag\n$`, []string{"call", "h:1", "m", "-d", `"x"`}},
		{2, `^qs serve: qs serve has no flag --port: the address is an argument: qs serve 127\.0\.0\.1:PORT\n$`, []string{"serve", "--port", "9000"}},
		{2, `^qs call: "1s" is not JSON: .*; a string needs quotes inside the shell's: '"1s"'\n$`, []string{"call", "h:1", "sleep", "1s"}},
		{2, `^qs soak: --targets is 1, want 2 to 64\n$`, []string{"soak", "--targets", "1"}},
		{2, `^qs health: --wait is negative\n$`, []string{"health", "--wait", "-1s", "h:1"}},
		{2, `^qs call: "greet" is not an address; want ADDRESS before METHOD\n$`, []string{"call", "greet", "h:1"}},
		{2, `^qs bench: "greet" is not an address; want ADDRESS before METHOD\n$`, []string{"bench", "greet", "tcp://h:1"}},
		{2, `^qs rpcs: "greet" is not an address; want ADDRESS before METHOD\n$`, []string{"rpcs", "greet", "h:1"}},
		{1, `^qs serve: tcp://192.0.2.1:1: listen on 192.0.2.1:1: bind: `, []string{"serve", "192.0.2.1:1"}},
		{3, `^qs call: tcp://nosuch.invalid:1: host nosuch.invalid was not found\n  to do:  correct the host`, []string{"call", "nosuch.invalid:1", "m"}},
		{3, `^qs ping: tcp://nosuch.invalid:1: host nosuch.invalid was not found\n  to do:  correct the host`, []string{"ping", "nosuch.invalid:1"}},
		{2, `^qs cp: 1 argument; usage: qs cp SOURCE DESTINATION \[flags\]\n$`, []string{"cp", "x"}},
		{2, `^qs cp: 3 arguments, want one SOURCE and one DESTINATION: run qs cp for each file, or copy the directory that contains them\n$`, []string{"cp", "x", "y", "tcp://h:1/"}},
		{2, `^qs cp: neither x nor y has a transport: write tcp://HOST:PORT/PATH\n$`, []string{"cp", "x", "y"}},
		{2, `^qs cp: neither x nor 127.0.0.1:1/x has a transport: write tcp://127.0.0.1:1/x\n$`, []string{"cp", "x", "127.0.0.1:1/x"}},
		{2, `^qs cp: neither h:1/x nor . has a transport: write tcp://h:1/x\n$`, []string{"cp", "h:1/x", "."}},
		{2, `^qs cp: SOURCE and DESTINATION are both remote; copy to this machine first\n$`, []string{"cp", "tcp://h:1/x", "sm://n/x"}},
		{2, `^qs cp: "tcp://h:1" has no path; write tcp://h:1/PATH`, []string{"cp", "x", "tcp://h:1"}},
		{2, `^qs cp: "tcp:h:1/x" is neither a path nor an address`, []string{"cp", "x", "tcp:h:1/x"}},
		{2, `^qs cp: --piece is 1, want 4096 to 67108864 bytes\n$`, []string{"cp", "-piece", "1", "x", "tcp://h:1/x"}},
		{1, `^qs cp: .*no-such-folder: no such file`, []string{"cp", "no-such-folder/x", "tcp://127.0.0.1:1/x"}},
		{2, `^qs perf: --floor is measured without --op\n$`, []string{"perf", "-floor", "-op", "lat"}},
		{2, `^qs perf: --floor needs a --size of at least 1\n$`, []string{"perf", "-floor", "-size", "0"}},
		{2, `^qs perf: --size 65 is more than --bulk 64: the table`, []string{"perf", "-op", "lat", "-size", "65", "-bulk", "64"}},
		{2, `^qs perf: --op idle cannot be combined with --busy, --cpuprofile or --target\n$`, []string{"perf", "-op", "idle", "-busy", "1"}},
		{2, `^qs perf: --op idle cannot be combined with --busy, --cpuprofile or --target\n$`, []string{"perf", "-op", "idle", "-cpuprofile", "f"}},
		{2, `^qs perf: --op idle cannot be combined with --busy, --cpuprofile or --target\n$`, []string{"perf", "-op", "idle", "-target", "tcp://h:1"}},
		{2, `^qs perf: --op cores cannot be combined with --cpuprofile or --target\n$`, []string{"perf", "-op", "cores", "-target", "tcp://h:1"}},
		{2, `^qs perf: --peers is 0, want at least 1, or 0 with --callers\n$`, []string{"perf", "-op", "idle", "-peers", "0"}},
		{2, `^qs perf: --processes is 0, want at least 1\n$`, []string{"perf", "-op", "idle", "-processes", "0"}},
		{2, `^qs serve: --write needs --root`, []string{"serve", "-write"}},
		{1, `^qs serve: cannot open the directory of --root: .*no-such-folder`, []string{"serve", "-root", "no-such-folder"}},
		{2, `^qs call: --timeout is negative\n$`, []string{"call", "-timeout", "-1s", "tcp://h:1", "m"}},
		{2, `^qs run: --processes is 65537, want at most 65536\n$`, []string{"run", "-n", "65537", "no-such-program"}},
	} {
		q := run(t, c.code, c.args...)
		require.Regexp(t, c.want, q.errors.String())
		require.Empty(t, q.out.String())
	}
}

func TestHelp(t *testing.T) {
	for _, c := range (&app{}).newRoot().Commands() {
		if c.Hidden {
			continue // not for people
		}
		q := run(t, 0, "help", c.Name())
		require.Contains(t, q.out.String(), "\nUsage:\n  qs "+c.Name())
		require.Empty(t, q.errors.String())
		require.Equal(t, q.out.String(), run(t, 0, c.Name(), "-h").out.String())
		if c.Name() != "completion" {
			require.Contains(t, q.out.String(), "\nExamples:\n  qs "+c.Name())
		}
		for line := range strings.Lines(q.out.String()) {
			require.LessOrEqual(t, utf8.RuneCountInString(line), 81, line)
		}
	}
	require.Contains(t, run(t, 0, "help", "cp").out.String(), "CRC-32C, which finds")
	require.Contains(t, run(t, 0, "help", "ping").out.String(), "\nFlags of the connection (qs help connection): --ca, --cert, ")
	require.NotContains(t, run(t, 0, "help", "ping").out.String(), "--peer-timeout time")
	require.Contains(t, run(t, 0, "help", "connection").out.String(), "--peer-timeout time ")
	for _, arg := range []string{"help", "-h", "--help"} {
		q := run(t, 0, arg)
		require.Regexp(t, `(?s)\nUsage:\n  qs COMMAND\n.*\nMeasure and test:\n.*  perf  .*\nExit codes:\n`, q.out.String())
		require.Empty(t, q.errors.String())
	}
	for _, arg := range []string{"version", "--version"} {
		require.Regexp(t, `^qs \S+( [0-9a-f]+)?, go1\.\S+ \w+/\w+\n$`, run(t, 0, arg).out.String())
	}
}
