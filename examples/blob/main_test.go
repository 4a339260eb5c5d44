//go:build unix

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
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
	"github.com/quicksilver-rpc/quicksilver/qs/qstest"
)

// asBlob has the test's own binary be the program.
const asBlob = "BLOB_ARGS"

func TestMain(m *testing.M) {
	if args := os.Getenv(asBlob); args != "" {
		os.Args = append(os.Args[:1], strings.Split(args, "\n")...)
		main()
		return
	}
	leak.Main(m)
}

func command(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asBlob+"="+strings.Join(args, "\n"))
	return cmd
}

// runBlob runs the program.
func runBlob(t testing.TB, args ...string) string {
	t.Helper()
	var out, output strings.Builder
	cmd := command(args...)
	cmd.Stdout, cmd.Stderr = &out, &output
	require.NoError(t, cmd.Run(), "blob %q: %s", args, &output)
	return out.String()
}

// A process is "blob serve".
type process struct {
	*exec.Cmd
	addr string
}

func serve(t testing.TB, dir string, flags ...string) *process {
	t.Helper()
	return serveAt(t, "tcp://127.0.0.1:0", dir, flags...)
}

func serveAt(t testing.TB, addr, dir string, flags ...string) *process {
	t.Helper()
	p := &process{Cmd: command(append(flags, "serve", addr, dir)...)}
	p.Stderr = os.Stderr
	out, err := p.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.Start())
	t.Cleanup(func() {
		_ = p.Process.Kill()
		_ = p.Wait()
	})
	p.addr, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	p.addr = strings.TrimSpace(p.addr)
	return p
}

// newFile returns the name of a file of n bytes that follow from the seed.
func newFile(t testing.TB, seed uint64, n int) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "in")
	require.NoError(t, os.WriteFile(name, randomBytes(seed, n), 0o600))
	return name
}

func randomBytes(seed uint64, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 1}).Read(b)
	return b
}

func requireSameFile(t testing.TB, a, b string) {
	t.Helper()
	x, err := os.ReadFile(a)
	require.NoError(t, err)
	y, err := os.ReadFile(b)
	require.NoError(t, err)
	require.True(t, bytes.Equal(x, y), "%s and %s differ", a, b)
}

// waitUntil waits for a condition of the file system.
func waitUntil(t testing.TB, what string, over func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for limit := time.After(time.Minute); !over(); {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("%s did not happen", what)
		}
	}
}

// TestBlobOverUDP checks that another transport needs only another address.
func TestBlobOverUDP(t *testing.T) {
	t.Parallel()
	s := serveAt(t, "udp://127.0.0.1:0", t.TempDir())
	in, out := newFile(t, 1, 3<<20), filepath.Join(t.TempDir(), "out")
	runBlob(t, "put", "a", in, s.addr)
	runBlob(t, "get", "a", out, s.addr)
	requireSameFile(t, in, out)
}

func TestBlob(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serve(t, dir)
	in, out := newFile(t, 1, 3<<20), filepath.Join(t.TempDir(), "out")
	runBlob(t, "put", "a", in, s.addr)
	runBlob(t, "put", "empty", newFile(t, 1, 0), s.addr)
	runBlob(t, "get", "a", out, s.addr)
	requireSameFile(t, in, out)
	runBlob(t, "get", "empty", out, s.addr)
	requireSameFile(t, newFile(t, 1, 0), out)
	require.Equal(t, "a\nempty\n", runBlob(t, "ls", "*", s.addr))
	runBlob(t, "rm", "empty", s.addr)
	require.Equal(t, "a\n", runBlob(t, "ls", "*", s.addr))

	var output strings.Builder
	for _, args := range [][]string{{"get", "b", out, s.addr}, {"put", "../b", in, s.addr}, {"what"}, {"put", "a"}} {
		cmd := command(args...)
		cmd.Stderr = &output
		require.Error(t, cmd.Run(), "blob %q", args)
	}
	require.Contains(t, output.String(), "no such file")
	require.Contains(t, output.String(), "escapes")
	require.Contains(t, output.String(), "usage: blob")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "what was not complete is not there")
}

// TestFailOver checks a server that is killed, or stopped, in the middle of a transfer: the other
// one takes over, and nothing fails.
func TestFailOver(t *testing.T) {
	t.Parallel()
	n := 64 << 20
	if long.On {
		n = 512 << 20
	}
	in := newFile(t, 2, n)
	for name, sig := range map[string]os.Signal{"killed": syscall.SIGKILL, "stopped": syscall.SIGSTOP} {
		for _, what := range []string{"put", "get"} {
			t.Run(what+"/"+name, func(t *testing.T) {
				t.Parallel() // what is stopped is noticed after a second or two
				dir, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
				first, other := serve(t, dir), serve(t, dir)
				args, begun := []string{what, "a", in, first.addr + "," + other.addr}, func() bool { return hasPart(t, dir) }
				if what == "get" {
					require.NoError(t, os.Link(in, filepath.Join(dir, "a")))
					args[2], begun = out, func() bool { return hasBegun(out) }
				}
				var output strings.Builder
				cmd := command(append([]string{"-stall", "1s"}, args...)...)
				cmd.Stderr = &output
				require.NoError(t, cmd.Start())
				waitUntil(t, "the transfer", begun)
				require.NoError(t, first.Process.Signal(sig))
				require.NoError(t, cmd.Wait(), &output)
				if what == "put" {
					out = filepath.Join(dir, "a")
				}
				requireSameFile(t, in, out)
				require.Equal(t, "a\n", runBlob(t, "ls", "a", other.addr))
			})
		}
	}
}

// hasPart reports whether a server has received some bytes of a file.
func hasPart(t testing.TB, dir string) bool {
	parts, err := filepath.Glob(filepath.Join(dir, ".part-*"))
	require.NoError(t, err)
	return slices.ContainsFunc(parts, func(part string) bool {
		info, err := os.Stat(part)
		return err == nil && info.Size() > 0
	})
}

// hasBegun reports whether the first bytes of a file have arrived.
func hasBegun(name string) bool {
	f, err := os.Open(name)
	if err != nil {
		return false
	}
	defer f.Close()
	var b [1024]byte
	_, _ = io.ReadFull(f, b[:])
	return b != [1024]byte{}
}

// TestSIGTERM checks SIGTERM in the middle of a get: the transfer succeeds, and the server ends
// without an error.
func TestSIGTERM(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serve(t, dir)
	want := randomBytes(4, 32<<20)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a"), want, 0o600))
	node, err := qs.Open("tcp://", qs.Config{})
	require.NoError(t, err)
	defer node.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	store, err := node.Peer(ctx, s.addr)
	require.NoError(t, err)
	var got bytes.Buffer
	_, err = Get.Call(ctx, store, Blob[qs.Sink]{"a", qs.Writer(writerFunc(func(b []byte) (int, error) {
		if got.Len() == 0 {
			if err := s.Process.Signal(syscall.SIGTERM); err != nil {
				return 0, err
			}
		} else if got.Len() < 2<<20 { // it drains by now: new calls are refused
			waitUntil(t, "the end of new calls", func() bool {
				_, err := List.Call(ctx, store, "*")
				return errors.Is(err, qs.ErrRefused)
			})
		}
		return got.Write(b)
	}))})
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got.Bytes()))
	require.NoError(t, s.Wait(), "the server's end")
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// TestSimulated runs the same code in simulated worlds. One of two servers is crashed, paused or cut off, at times that the seed
// draws, and is restarted or not; the network delays and loses. Every put, get and ls succeeds, with the right bytes.
func TestSimulated(t *testing.T) {
	t.Parallel()
	seeds := 40
	if long.On {
		seeds = 1000
	}
	for seed := range seeds {
		runSimulated(t, uint64(seed))
	}
}

func runSimulated(t *testing.T, seed uint64) {
	dir := t.TempDir()
	rng := rand.New(rand.NewPCG(seed, 2))
	w := sim.NewWorld(sim.Config{Seed: seed, Level: sim.Level(seed & 1), Faults: sim.Faults{Jitter: 200 * time.Microsecond, Loss: rng.Float64() / 200}})
	defer w.Close()
	open := func(addr string) *qs.Node {
		cfg := qs.Config{PeerTimeout: time.Second, ClientInterceptors: []qs.Interceptor{qs.Retry(qs.RetryPolicy{ProgressTimeout: time.Second})}}
		cfg.HG.NA = hg.NetConfig{Plugins: []hg.Plugin{w.Plugin()}}
		node, err := qs.Open(addr, cfg)
		require.NoError(t, err)
		return node
	}
	ctx, stop := context.WithCancel(context.Background())
	server := func(addr string) func() {
		return func() {
			root, err := os.OpenRoot(dir)
			require.NoError(t, err)
			defer root.Close()
			node := open(addr)
			handle(node, root)
			_ = node.Serve(ctx)
		}
	}
	w.Go("one", server("sim://one"))
	w.Go("two", server("sim://two"))
	bad := w.Node("one")
	w.AfterEvents(rng.IntN(1500), func() {
		switch rng.IntN(4) {
		case 0:
			bad.Crash()
		case 1:
			bad.PowerOff()
		case 2:
			bad.Pause(time.Duration(rng.Int64N(int64(20 * time.Second))))
		case 3:
			w.Partition("one", "client", true)
			w.After(time.Duration(rng.Int64N(int64(20*time.Second))), func() { w.Heal() })
		}
	})
	w.Go("client", func() {
		defer stop()
		w.Sleep(time.Millisecond)
		node := open("sim://")
		defer node.Close()
		ctx, cancel := node.HG().NA().WithTimeout(context.Background(), time.Minute)
		defer cancel()
		store, err := node.Peer(ctx, "sim://one", "sim://two")
		require.NoError(t, err)
		out := filepath.Join(t.TempDir(), "out")
		for i := range 4 {
			key := fmt.Sprint("key", i)
			in := newFile(t, seed+uint64(i), rng.IntN(300_000))
			_, err := call(ctx, store, "put", key, in)
			require.NoError(t, err, "seed %d: put %s", seed, key)
			_, err = call(ctx, store, "get", key, out)
			require.NoError(t, err, "seed %d: get %s", seed, key)
			requireSameFile(t, in, out)
		}
		names, err := call(ctx, store, "ls", "key*", "")
		require.NoError(t, err, "seed %d: ls", seed)
		require.Equal(t, "key0\nkey1\nkey2\nkey3\n", names)
		_, err = call(ctx, store, "rm", "key0", "")
		require.True(t, err == nil || qs.FateOf(err) == qs.MaybeRan, "seed %d: rm, which is not repeated when it may have run: %v", seed, err)
	})
	require.NoError(t, w.Run(time.Hour), "seed %d", seed)
}

// TestTLS checks the three flags: both sides present and verify certificates.
func TestTLS(t *testing.T) {
	t.Parallel()
	cert, key := testcert.Write(t)
	flags := []string{"-cert", cert, "-key", key, "-ca", cert}
	s := serve(t, t.TempDir(), flags...)
	in, out := newFile(t, 5, 1<<20), filepath.Join(t.TempDir(), "out")
	runBlob(t, append(flags, "put", "a", in, s.addr)...)
	runBlob(t, append(flags, "get", "a", out, s.addr)...)
	requireSameFile(t, in, out)

	other, otherKey := testcert.Write(t)
	for want, flags := range map[string][]string{"TLS is required here": nil, "certificate": {"-cert", other, "-key", otherKey, "-ca", cert}} {
		output, err := command(append(flags, "ls", "*", s.addr)...).CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(output), want)
	}
}

// TestQS checks that the tool lists and calls what the server serves.
func TestQS(t *testing.T) {
	t.Parallel()
	qs := filepath.Join(t.TempDir(), "qs")
	workspace, err := filepath.Abs("../../go.work")
	require.NoError(t, err)
	build := exec.Command("go", "build", "-o", qs, "../../cmd/qs")
	build.Env = append(os.Environ(), "GOWORK="+workspace) // the tool is a module of its own
	output, err := build.CombinedOutput()
	require.NoError(t, err, "%s", output)
	s := serve(t, t.TempDir())
	runBlob(t, "put", "a", newFile(t, 1, 1000), s.addr)
	run := func(args ...string) string {
		out, err := exec.Command(qs, args...).Output() // what is no answer is not there
		require.NoError(t, err)
		return string(out)
	}
	rpcs := run("rpcs", s.addr)
	require.Regexp(t, `(?m)^blob/list +call +msgpack +string -> \[\]string$`, rpcs)
	require.Regexp(t, `(?m)^blob/put +call +msgpack +main.Blob\{Key string, Body .*Source\} -> int64$`, rpcs)
	require.Equal(t, "[\"a\"]\n", run("call", s.addr, "blob/list", `"*"`))
	require.Equal(t, "{}\n", run("call", s.addr, "blob/delete", `"a"`))
	require.Equal(t, "null\n", run("call", s.addr, "blob/list", `"*"`))
}

// TestCompatible checks that an incompatible change to a committed method fails the test before it
// is released.
func TestCompatible(t *testing.T) {
	qstest.Compatible(t, "testdata/api.txt", Put, Get, List, Delete)
}
