//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/impi"
	"github.com/quicksilver-rpc/quicksilver/rendezvous"
	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
)

func init() { asProgram = runMember }

// runMember joins the others and then acts by args: "leave", or "fail RANK", or "absent RANK", or
// "wait" for a signal, or "stubborn": then rank 0 ignores SIGTERM, and the other ranks fail.
func runMember(args []string) int {
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	reported := make(chan os.Signal, 1)
	signal.Notify(reported, syscall.SIGTERM, syscall.SIGUSR1)
	if args[0] == "absent" && args[1] == os.Getenv(rendezvous.EnvRank) {
		<-reported
		return 1
	}
	m, err := rendezvous.Start(ctx, rendezvous.Options{})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer m.Close()
	world, err := m.Exchange(ctx, rendezvous.Info{Name: strconv.Itoa(os.Getpid())})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Printf("rank %d of %d\n", m.Rank(), len(world.Members))
	switch {
	case args[0] == "stubborn" && m.Rank() == 0:
		<-reported
		<-ctx.Done()
	case args[0] == "stubborn", args[0] == "fail" && args[1] == strconv.Itoa(m.Rank()):
		fmt.Fprint(os.Stderr, "no end to this line")
		return 3
	case args[0] != "leave":
		s := <-reported
		fmt.Println("told:", s)
		if s == syscall.SIGTERM {
			return 1
		}
	}
	if err := m.Leave(); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

func sortedLines(text string) []string {
	l := strings.Split(strings.TrimSpace(text), "\n")
	slices.Sort(l)
	return l
}

func TestRun(t *testing.T) {
	t.Parallel()
	q := run(t, 0, "run", "-n", "3", "--", executable(t), programArg, "leave")
	require.Equal(t, []string{"[0] rank 0 of 3", "[1] rank 1 of 3", "[2] rank 2 of 3"}, sortedLines(q.out.String()))
	require.Empty(t, q.errors.String())
}

// TestRunFailureEndsAll checks that if one process fails the others get SIGTERM, and qs run ends
// with the exit code of the first.
func TestRunFailureEndsAll(t *testing.T) {
	t.Parallel()
	q := run(t, 1, "run", "-n", "3", "-grace", "4s", "--", executable(t), programArg, "fail", "1")
	require.Equal(t, []string{
		"[0] rank 0 of 3", "[0] told: terminated", "[1] rank 1 of 3", "[2] rank 2 of 3", "[2] told: terminated",
	}, sortedLines(q.out.String()))
	require.Contains(t, q.errors.String(), "[1] no end to this line\n")
	require.Contains(t, q.errors.String(), "qs run: rank 1: exit status 3\n")
}

// TestRunJSON checks that with -json each line is an object, and so is each note.
func TestRunJSON(t *testing.T) {
	t.Parallel()
	q := run(t, 0, "run", "-json", "-n", "1", "--", executable(t), programArg, "leave")
	require.Equal(t, `{"rank":0,"stream":"stdout","line":"rank 0 of 1"}`+"\n", q.out.String())
	requireSchema(t, "run", q.out.Bytes())
	q = run(t, 1, "run", "-json", "-n", "1", "sh", "-c", "exit 3")
	require.Equal(t, `{"note":"rank 0: exit status 3"}`, strings.Split(q.errors.String(), "\n")[0])
	require.Contains(t, q.errors.String(), `"kind":"failed"`)
}

// TestRunKills checks that a process that does not end after SIGTERM is killed.
func TestRunKills(t *testing.T) {
	t.Parallel()
	q := run(t, 1, "run", "-n", "2", "-grace", "10ms", "--", executable(t), programArg, "stubborn")
	require.Contains(t, q.errors.String(), "qs run: rank 1: exit status 3\nqs run: rank 0: signal: killed: it did not end on request\n"+
		"qs run: 2 failures, the first: rank 1: exit status 3\n")
}

// TestRunNamesMissing checks that a process that does not join is named, by qs and to the waiting
// processes.
func TestRunNamesMissing(t *testing.T) {
	t.Parallel()
	q := run(t, 1, "run", "-n", "3", "-timeout", "1s", "-grace", "10ms", "--", executable(t), programArg, "absent", "2")
	require.Contains(t, q.errors.String(), "startup timed out: missing rank 2")
	require.Contains(t, q.out.String(), "[0] rendezvous: join ")
	require.Contains(t, q.out.String(), "as rank 0: startup aborted: startup timed out: missing rank 2")
}

func TestRunPassesSignals(t *testing.T) {
	t.Parallel()
	q := newQS(t, "run", "-n", "2", "--", executable(t), programArg, "wait")
	r, w := io.Pipe()
	q.cmd.Stdout = w
	q.start()
	all := bufio.NewScanner(r)
	for range 2 {
		require.True(t, all.Scan())
		require.Contains(t, all.Text(), " of 2")
	}
	require.NoError(t, q.cmd.Process.Signal(syscall.SIGUSR1))
	for range 2 {
		require.True(t, all.Scan())
		require.Contains(t, all.Text(), "] told: user defined signal 1")
	}
	q.wait(0)
}

// startShell starts a qs run of a script, and returns readers of its output.
func startShell(t *testing.T, script string, flags ...string) (q *process, out, errors *bufio.Scanner) {
	t.Helper()
	q = newQS(t, append(append([]string{"run"}, flags...), "--", "sh", "-c", script)...)
	var theirs []*os.File
	scan := func(to *io.Writer) *bufio.Scanner {
		r, w, err := os.Pipe()
		require.NoError(t, err)
		*to, theirs = w, append(theirs, w)
		t.Cleanup(func() { _ = r.Close() })
		return bufio.NewScanner(r)
	}
	out, errors = scan(&q.cmd.Stdout), scan(&q.cmd.Stderr)
	q.start()
	for _, w := range theirs {
		require.NoError(t, w.Close())
	}
	return q, out, errors
}

// TestRunKillsStopped checks that a process that is stopped or ignores signals is killed at the end
// of the grace period, so qs run always ends on SIGTERM.
func TestRunKillsStopped(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		q, out, diag := startShell(t, `trap "" TERM INT HUP; echo here; kill -STOP $$`, "-n", "1", "-grace", "100ms")
		require.True(t, out.Scan())
		require.Equal(t, "[0] here", out.Text())
		require.NoError(t, q.cmd.Process.Signal(s))
		require.True(t, diag.Scan())
		require.Regexp(t, `^qs run: `+s.String()+`: rank 0 is to end within 100ms$`, diag.Text())
		require.True(t, diag.Scan())
		require.Equal(t, "qs run: rank 0: signal: killed: it did not end on request", diag.Text())
		q.wait(1)
	}
}

// TestRunSecondSignalKills checks that a second signal ends the grace period.
func TestRunSecondSignalKills(t *testing.T) {
	t.Parallel()
	q, out, diag := startShell(t, `trap "" TERM INT; echo here; while :; do sleep 1; done`, "-n", "1", "-grace", "1h")
	require.True(t, out.Scan())
	require.NoError(t, q.cmd.Process.Signal(syscall.SIGINT))
	require.True(t, diag.Scan())
	require.Equal(t, "qs run: interrupt: rank 0 is to end within 1h0m0s", diag.Text())
	require.NoError(t, q.cmd.Process.Signal(syscall.SIGTERM))
	require.True(t, diag.Scan())
	require.Equal(t, "qs run: terminated again: rank 0 is killed", diag.Text())
	q.wait(1)
}

// TestRunKeepContinues checks that with -keep the other processes continue if one fails, and the exit code
// reports the failure.
func TestRunKeepContinues(t *testing.T) {
	t.Parallel()
	q, out, diag := startShell(t, `[ $QS_RANK = 1 ] && exit 3; trap "echo on; exit 0" USR1; echo here; while :; do sleep 0.01; done`,
		"-n", "2", "-grace", "0", "-keep")
	require.True(t, diag.Scan())
	require.Equal(t, "qs run: rank 1: exit status 3", diag.Text())
	require.True(t, out.Scan())
	require.Equal(t, "[0] here", out.Text())
	require.NoError(t, q.cmd.Process.Signal(syscall.SIGUSR1))
	require.True(t, out.Scan())
	require.Equal(t, "[0] on", out.Text())
	q.wait(1)
}

// TestRunKillsGrandchildren checks that the processes that a process leaves in its group are
// killed, and qs run does not wait for their output.
func TestRunKillsGrandchildren(t *testing.T) {
	t.Parallel()
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	q, _, diag := startShell(t, `(exec 3>`+fifo+`; sleep 60) & exit 0`, "-n", "1")
	f, err := os.Open(fifo)
	require.NoError(t, err)
	defer f.Close()
	_, err = io.ReadAll(f) // until the other end is closed in all processes
	require.NoError(t, err)
	require.True(t, diag.Scan())
	require.Equal(t, "qs run: rank 0 has left processes behind: killed", diag.Text())
	q.wait(0)
}

// heldPipe is a pipe that processes of a test hold open for writing while they run.
type heldPipe struct {
	t    *testing.T
	name string
	f    *os.File
}

func newHeldPipe(t *testing.T) *heldPipe {
	h := &heldPipe{t: t, name: filepath.Join(t.TempDir(), "held")}
	require.NoError(t, syscall.Mkfifo(h.name, 0o600))
	return h
}

// waitForWriters waits until a process holds it, and has written a line for each of n.
func (h *heldPipe) waitForWriters(n int) {
	h.t.Helper()
	var err error
	h.f, err = os.Open(h.name)
	require.NoError(h.t, err)
	h.t.Cleanup(func() { _ = h.f.Close() })
	require.NoError(h.t, h.f.SetReadDeadline(time.Now().Add(patience)))
	_, err = io.ReadFull(h.f, make([]byte, n*len("here\n")))
	require.NoError(h.t, err)
}

// requireGone waits until none holds it.
func (h *heldPipe) requireGone() {
	h.t.Helper()
	_, err := io.ReadAll(h.f)
	require.NoError(h.t, err)
}

// TestRunOutputNotRead checks that if the reader of the output of qs run is gone, the processes
// end, and then qs run does.
func TestRunOutputNotRead(t *testing.T) {
	t.Parallel()
	for _, keep := range []string{"-keep=false", "-keep"} {
		h := newHeldPipe(t)
		script := `exec 3>` + h.name + `; trap "exit 0" TERM; echo here >&3; while :; do echo line; sleep 0.01; done`
		q := newQS(t, "run", "-n", "2", keep, "--", "sh", "-c", script)
		r, w, err := os.Pipe()
		require.NoError(t, err)
		q.cmd.Stdout = w
		q.start()
		require.NoError(t, w.Close())
		h.waitForWriters(2)
		require.True(t, bufio.NewScanner(r).Scan())
		require.NoError(t, r.Close())
		h.requireGone()
		q.wait(1)
		require.Regexp(t, `^qs run: output: write .*: broken pipe: ranks 0, 1 are to end within 9s\nqs run: 1 failure\n$`, q.errors.String())
	}
}

// TestRunOutputBlocked checks that an output that is not read, and not closed, does not keep qs run
// from ending.
func TestRunOutputBlocked(t *testing.T) {
	t.Parallel()
	h := newHeldPipe(t)
	q := newQS(t, "run", "-n", "2", "-grace", "10ms", "--", "sh", "-c", `echo line; exec 3>`+h.name+`; echo here >&3; sleep 60`)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	raw, err := w.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Write(func(fd uintptr) bool { // until it is full
		for err == nil {
			_, err = syscall.Write(int(fd), make([]byte, 512))
		}
		return true
	}))
	q.cmd.Stdout = w
	q.start()
	require.NoError(t, w.Close())
	h.waitForWriters(2)
	require.NoError(t, q.cmd.Process.Signal(syscall.SIGTERM))
	h.requireGone()
	q.wait(1)
	require.Contains(t, q.errors.String(), "qs run: ranks 0, 1 are killed; 2s later the output of qs run is still blocked\n")
}

func TestRunUsage(t *testing.T) {
	require.Contains(t, run(t, 2, "run", "--", "true").errors.String(), "--processes is required")
	require.Contains(t, run(t, 2, "run", "-n", "2", "-grace", "-1s", "--", "true").errors.String(), "-grace is negative")
	require.Contains(t, run(t, 2, "run", "-n", "2").errors.String(), "0 arguments")
	require.Contains(t, run(t, 1, "run", "-n", "2", "--", "/does/not/exist").errors.String(), "no such file")
	require.Contains(t, run(t, 2, "rendezvous").errors.String(), "--processes is required")
}

// TestRendezvous checks that processes that were started by other means find each other with the
// settings that qs rendezvous prints.
func TestRendezvous(t *testing.T) {
	t.Parallel()
	q := newQS(t, "rendezvous", "-n", "2")
	r, w := io.Pipe()
	q.cmd.Stdout = w
	q.start()
	env := append(os.Environ(), "QS_SIZE=2")
	all := bufio.NewScanner(r)
	for range 2 {
		require.True(t, all.Scan())
		set, ok := strings.CutPrefix(all.Text(), "export ")
		require.True(t, ok, all.Text())
		env = append(env, set)
	}
	var both sync.WaitGroup
	for rank := range 2 {
		both.Go(func() {
			cmd := exec.Command(executable(t), programArg, "leave")
			cmd.Env = append(env[:len(env):len(env)], fmt.Sprint("QS_RANK=", rank))
			out, err := cmd.CombinedOutput()
			if err != nil || string(out) != fmt.Sprintf("rank %d of 2\n", rank) {
				t.Errorf("rank %d: %v: %s", rank, err, out)
			}
		})
	}
	both.Wait()
	q.wait(0)
	require.Contains(t, q.errors.String(), "all processes have started")
}

// TestRendezvousIMPI checks that qs rendezvous -impi is a server of IMPI 0.0, which admits clients
// with the environment of LAM/MPI.
func TestRendezvousIMPI(t *testing.T) {
	t.Parallel()
	open := run(t, 2, "rendezvous", "-impi", "-n", "1")
	require.Empty(t, open.out.String(), "an address without a listener")
	require.Contains(t, open.errors.String(), "IMPI_AUTH_NONE")
	require.Contains(t, open.errors.String(), "IMPI_AUTH_KEY")
	q := newQS(t, "rendezvous", "-json", "-impi", "-n", "1")
	q.cmd.Env = append(q.cmd.Env, "IMPI_AUTH_KEY=77")
	r, w := io.Pipe()
	q.cmd.Stdout = w
	q.start()
	all := bufio.NewScanner(r)
	require.True(t, all.Scan())
	requireSchema(t, "rendezvous", all.Bytes())
	var there rendezvousReport
	require.NoError(t, json.Unmarshal(all.Bytes(), &there))
	key := uint64(77)
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	m, err := rendezvous.Join(ctx, rendezvous.Config{Form: protocol.Strict, Addr: there.Address, Auth: protocol.Auth{Key: &key}})
	require.NoError(t, err)
	defer m.Close()
	world, err := impi.Exchange(ctx, m, impi.Client{Versions: []impi.Version{{}}, PacketLen: 1024, MaxTag: 32767})
	require.NoError(t, err)
	require.Len(t, world.Clients, 1)
	require.NoError(t, m.Leave())
	q.wait(0)
	requireSchema(t, "note", q.errors.Bytes())
}

// TestLongLine checks that a line without an end is kept within bounds.
func TestLongLine(t *testing.T) {
	var out strings.Builder
	var all lineWriter
	r := all.newRankLines(7, "stdout", &out)
	for range 3 * maxLine / 1000 {
		_, err := r.Write(make([]byte, 1000))
		require.NoError(t, err)
		require.LessOrEqual(t, len(r.rest), maxLine)
	}
	r.flushLast()
	require.Equal(t, 3, strings.Count(out.String(), "[7] "))
}
