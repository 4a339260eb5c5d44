//go:build unix

package mercury_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/mercury"
	"github.com/quicksilver-rpc/quicksilver/mercury/perf"
)

// requirePrograms skips the test unless C's programs are there.
func requirePrograms(t *testing.T, programs ...string) {
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("%s, a program of C Mercury, is not in PATH", p)
		}
	}
	if addr := cAddr(); strings.Contains(addr, "ofi_rxm") {
		t.Skipf("C Mercury is at %s: its libfabric is older than 1.18", addr)
	}
}

// cAddr returns the address of a process of C Mercury; "" if it prints none.
var cAddr = sync.OnceValue(func() string {
	dir, err := os.MkdirTemp("", "mercury")
	if err != nil {
		return ""
	}
	defer os.RemoveAll(dir)
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second) // C looks through all of /tmp when it starts
	defer stop()
	cmd := cCommand(ctx, dir, "hg_perf_server")
	if cmd.Start() != nil {
		return ""
	}
	defer func() { stop(); _ = cmd.Wait() }()
	for ctx.Err() == nil {
		if b, err := os.ReadFile(filepath.Join(dir, hostfile)); err == nil && bytes.HasSuffix(b, []byte("\n")) {
			return string(bytes.TrimSpace(b))
		}
		pause(ctx, 20*time.Millisecond)
	}
	return ""
})

// hostfile is the file in which C's programs look for the address of a server.
const hostfile = "port.cfg"

func cCommand(ctx context.Context, dir, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, append([]string{"-c", "ofi", "-p", "tcp", "-H", "127.0.0.1"}, args...)...)
	cmd.Dir, cmd.WaitDelay = dir, time.Second
	return cmd
}

// runC runs a C client of addr and returns its output.
func runC(t *testing.T, addr, program string, args ...string) string {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, hostfile), []byte(addr+"\n"), 0o644))
	out, err := cCommand(testContext(t), dir, program, args...).CombinedOutput()
	require.NoError(t, err, "%s\n%s", program, out)
	return string(out)
}

// cServer starts a C server and returns its address.
func cServer(t *testing.T, program string, args ...string) (string, *exec.Cmd) {
	dir := t.TempDir()
	cmd := cCommand(context.Background(), dir, program, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s", &out)
		}
	})
	for ctx := testContext(t); ctx.Err() == nil; {
		b, err := os.ReadFile(filepath.Join(dir, hostfile))
		if err == nil && bytes.HasSuffix(b, []byte("\n")) {
			return strings.TrimSpace(string(b)), cmd
		}
		pause(ctx, 20*time.Millisecond)
	}
	t.Fatal(program + " does not say where it is")
	return "", nil
}

// pause waits between two looks.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// TestLiveServer has C's programs measure a Go server, and verify its data: calls, input that is
// sent separately, transfers in both directions.
func TestLiveServer(t *testing.T) {
	requirePrograms(t, "hg_first", "hg_rate", "hg_bw_read", "hg_bw_write")
	n := open(t, mercury.Config{})
	perf.Serve(n, nil)
	figure := regexp.MustCompile(`(?m)^\d+ +[\d.]+`)
	for _, c := range []struct {
		program string
		args    string
	}{
		{"hg_first", ""},
		{"hg_rate", "-y 64 -z 64 -l 500 -x 16"},
		{"hg_rate", "-y 2048 -z 65536 -l 20 -x 4 -v"},
		{"hg_bw_read", "-y 262144 -z 1048576 -l 5 -x 2 -w 8 -v"},
		{"hg_bw_write", "-y 262144 -z 1048576 -l 5 -x 2 -w 8 -v"},
	} {
		out := runC(t, n.Addr(), c.program, strings.Fields(c.args)...)
		require.Regexp(t, figure, out, "%s", c.program)
		require.NotContains(t, strings.ToLower(out), "error", "%s", c.program)
		t.Log(c.program, figure.FindAllString(out, -1))
	}
}

// TestLiveClient measures C's server with a Go program: an empty call, an unknown RPC, long input,
// memory that the server writes and reads.
func TestLiveClient(t *testing.T) {
	requirePrograms(t, "hg_perf_server", "hg_first") // new in Mercury 2.4, when the RPCs got other numbers
	addr, cmd := cServer(t, "hg_perf_server", "-z", "1048576", "-x", "16")
	n := open(t, mercury.Config{})
	_, err := perf.Ping(testContext(t), n, addr)
	require.NoError(t, err)
	_, err = n.Call(testContext(t), addr, 1<<50, nil)
	require.ErrorIs(t, err, mercury.ErrNoMethod)
	require.Equal(t, mercury.NotRun, mercury.FateOf(err))
	for _, size := range []int{64, 8192, 1 << 20} {
		r, err := perf.Rate(testContext(t), n, addr, perf.Options{Size: size, InFlight: 16, For: 50 * time.Millisecond})
		require.NoError(t, err)
		t.Log(size, "bytes:", fmt.Sprintf("%.0f calls/s", r.Rate()))
	}
	r, err := perf.Bandwidth(testContext(t), n, addr, true, perf.Options{Size: 1 << 20, InFlight: 4, For: 50 * time.Millisecond, Verify: true})
	require.NoError(t, err)
	t.Log("written by C:", fmt.Sprintf("%.0f MiB/s", r.MiB()))
	require.NoError(t, perf.Done(testContext(t), n, addr))
	require.NoError(t, cmd.Wait())

	addr, cmd = cServer(t, "hg_perf_server", "-z", "1048576", "-x", "16")
	r, err = perf.Bandwidth(testContext(t), n, addr, false, perf.Options{Size: 1 << 20, InFlight: 4, For: 50 * time.Millisecond, Verify: true})
	require.NoError(t, err)
	t.Log("read by C:", fmt.Sprintf("%.0f MiB/s", r.MiB()))
	require.NoError(t, perf.Done(testContext(t), n, addr))
	require.NoError(t, cmd.Wait())
}

// The RPCs of Mercury's unit tests.
type (
	openOut struct{ Ret, Event int32 }
	openIn  struct {
		Path   string
		Handle uint64
	}
	bulkIn struct {
		File                 int32
		Size, Origin, Target uint64
		Mem                  mercury.Bulk
	}
	overflow231 struct { // of Mercury 2.3
		Text string
		Len  uint64
	}
)

var (
	unitNull       = mercury.Define[struct{}, struct{}]("hg_test_rpc_null")
	unitOpen       = mercury.Define[openIn, openOut]("hg_test_rpc_open")
	unitOneWay     = mercury.Define[openIn, openOut]("hg_test_rpc_open_no_resp")
	unitString     = mercury.Define[string, struct{}]("hg_test_string")
	unitStringOne  = mercury.Define[string, struct{}]("hg_test_string_oneway")
	unitOverflow   = mercury.Define[struct{}, string]("hg_test_overflow")
	unitOverflow23 = mercury.Define[struct{}, overflow231]("hg_test_overflow")
	unitCancel     = mercury.Define[struct{}, struct{}]("hg_test_cancel_rpc")
	unitKilled     = mercury.Define[struct{}, struct{}]("hg_test_killed_rpc")
	unitFinalize   = mercury.Define[struct{}, struct{}]("hg_test_finalize")
	unitBulk       = []*mercury.Method[bulkIn, uint64]{
		mercury.Define[bulkIn, uint64]("hg_test_bulk_write"),
		mercury.Define[bulkIn, uint64]("hg_test_bulk_bind_write"),
		mercury.Define[bulkIn, uint64]("hg_test_bulk_bind_forward"),
	}
)

// since24 reports whether the programs are those of Mercury 2.4 or later.
func since24() bool {
	_, err := exec.LookPath("hg_first")
	return err == nil
}

// headerOfC is the length of the headers of C's programs, which expect output of twice the length
// of a message.
func headerOfC(t *testing.T) int {
	addr, cmd := cServer(t, "hg_test_server")
	n := open(t, mercury.Config{})
	_, err := n.Call(testContext(t), addr, 1<<50, nil)
	require.ErrorIs(t, err, mercury.ErrNoMethod)
	require.NoError(t, cmd.Process.Kill())
	return n.HeaderSize(addr)
}

// serveUnit is hg_test_server.
func serveUnit(n *mercury.Node, overflow int) {
	null := func(context.Context, struct{}) (out struct{}, err error) { return }
	text := func(context.Context, string) (out struct{}, err error) { return }
	opened := func(_ context.Context, in openIn) (openOut, error) { return openOut{Event: int32(in.Handle)}, nil }
	unitNull.Handle(n, null)
	unitFinalize.Handle(n, null)
	unitOpen.Handle(n, opened)
	unitOneWay.Handle(n, opened)
	unitString.Handle(n, text)
	unitStringOne.Handle(n, text)
	long := strings.Repeat("h", overflow)
	if since24() {
		unitOverflow.Handle(n, func(context.Context, struct{}) (string, error) { return long, nil })
	} else {
		unitOverflow23.Handle(n, func(context.Context, struct{}) (overflow231, error) { return overflow231{long, uint64(len(long))}, nil })
	}
	n.Handle(unitCancel.ID(), func(r *mercury.Request) { r.Detach() })
	for _, m := range unitBulk {
		m.Handle(n, func(ctx context.Context, in bulkIn) (uint64, error) {
			if in.Size > 1<<20 {
				return 0, mercury.ErrOverflow
			}
			buf := make([]byte, in.Size)
			if _, err := mercury.RequestOf(ctx).Remote(in.Mem).Get(ctx, buf, int64(in.Origin)); err != nil {
				return 0, err
			}
			for i, b := range buf {
				if b != byte(uint64(i)+in.Origin) {
					return 0, nil
				}
			}
			return in.Size, nil
		})
	}
}

// TestLiveUnitServer checks that C's own tests pass with a Go server: each of their scenarios, with
// their threads, one-way calls, cancels, segments and bound handles.
func TestLiveUnitServer(t *testing.T) {
	requirePrograms(t, "hg_test_server", "hg_test_rpc", "hg_test_bulk")
	n := open(t, mercury.Config{})
	serveUnit(n, 2*(4096-headerOfC(t)))
	for _, program := range []string{"hg_test_rpc", "hg_test_bulk"} {
		out := runC(t, n.Addr(), program)
		require.NotContains(t, strings.ToUpper(out), "FAILED", "%s", program)
		t.Log(program, strings.Count(out, "PASSED"), "passed")
		require.Contains(t, out, "PASSED")
	}
}

// TestLiveUnitClient calls the same RPCs of C's server from Go. It ends in the middle of the last
// one.
func TestLiveUnitClient(t *testing.T) {
	requirePrograms(t, "hg_test_server")
	addr, cmd := cServer(t, "hg_test_server")
	n := open(t, mercury.Config{})
	ctx := testContext(t)
	_, err := unitNull.Call(ctx, n, addr, struct{}{})
	for ; errors.Is(err, mercury.ErrNoMethod); _, err = unitNull.Call(ctx, n, addr, struct{}{}) {
		pause(ctx, 10*time.Millisecond) // Mercury 2.3 prints its address before it registers them
	}
	require.NoError(t, err)
	in := openIn{"./test.txt", 12345}
	out, err := unitOpen.Call(ctx, n, addr, in)
	require.NoError(t, err)
	require.Equal(t, openOut{0, 12345}, out)
	if since24() {
		long := strings.Repeat("s", 100_000)
		_, err = unitString.Call(ctx, n, addr, long)
		require.NoError(t, err)
		for _, s := range []string{"short", long} {
			require.NoError(t, unitStringOne.Notify(ctx, n, addr, s))
		}
	}
	for range 3 {
		var text string
		if since24() {
			text, err = unitOverflow.Call(ctx, n, addr, struct{}{})
		} else {
			var o overflow231
			o, err = unitOverflow23.Call(ctx, n, addr, struct{}{})
			text = o.Text
		}
		require.NoError(t, err)
		require.Greater(t, len(text), 8000)
		require.Empty(t, strings.Trim(text, "h"))
	}
	_, err = unitCancel.Call(shortContext(t), n, addr, struct{}{})
	require.ErrorIs(t, err, mercury.ErrTimeout)
	mem := make([]byte, 1<<20)
	for i := range mem {
		mem[i] = byte(i)
	}
	region, err := n.Lend(mem, mercury.Read, addr)
	require.NoError(t, err)
	for _, c := range []bulkIn{{Size: 0}, {Size: 1 << 20}, {Size: 1 << 18, Origin: 1<<19 + 1}, {Size: 1 << 17, Origin: 1<<19 + 1, Target: 1 << 10}} {
		c.Mem = region.Bulk()
		got, err := unitBulk[0].Call(ctx, n, addr, c)
		require.NoError(t, err)
		require.Equal(t, c.Size, got, "%+v", c)
	}
	require.NoError(t, region.Close())
	region, err = n.LendSegments([][]byte{mem[:1000], mem[1000:1900]}, mercury.Read)
	require.NoError(t, err)
	eager := region.EagerBulk()
	require.NoError(t, region.Close())
	got, err := unitBulk[0].Call(ctx, n, addr, bulkIn{Size: 1900, Mem: eager})
	require.NoError(t, err)
	require.EqualValues(t, 1900, got, "in the handle")
	_, err = unitKilled.Call(ctx, n, addr, struct{}{})
	require.ErrorIs(t, err, mercury.ErrPeerLost)
	require.Equal(t, mercury.MaybeRan, mercury.FateOf(err))
	require.NoError(t, cmd.Wait())

	addr, cmd = cServer(t, "hg_test_server")
	for _, err = unitFinalize.Call(ctx, n, addr, struct{}{}); errors.Is(err, mercury.ErrNoMethod); _, err = unitFinalize.Call(ctx, n, addr, struct{}{}) {
		pause(ctx, 10*time.Millisecond)
	}
	require.NoError(t, err)
	require.NoError(t, cmd.Wait())
}
