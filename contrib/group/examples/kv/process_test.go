//go:build unix

package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	qs "github.com/quicksilver-rpc/quicksilver"
	"github.com/quicksilver-rpc/quicksilver/contrib/group"
	"github.com/quicksilver-rpc/quicksilver/internal/long"
	"github.com/quicksilver-rpc/quicksilver/internal/testcert"
)

// build builds a command, of the module in dir.
func build(t *testing.T, dir, pkg string) string {
	out := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command("go", "build", "-o", out, pkg)
	cmd.Dir = dir
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", text)
	return out
}

// TestRun: five processes on one machine, started together, under load, with TLS and a launcher.
func TestRun(t *testing.T) {
	kv, run := build(t, ".", "."), build(t, "../../../..", "./cmd/qs")
	cert, key := testcert.Write(t)
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	cmd := exec.CommandContext(ctx, run, "run", "-n", "5", "--", kv, "-dir", t.TempDir(), "-load", "2s", "-cert", cert, "-cert-key", key, "-ca", cert)
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", text)
	require.Contains(t, string(text), "every answer was checked: all right")
	require.Equal(t, 5, strings.Count(string(text), ": ready at "), "%s", text)
}

// A fleet is owners as processes.
type fleet struct {
	t      *testing.T
	binary string
	args   [][]string
	webs   []string
	cmds   []*exec.Cmd
}

func freePort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// hostOf returns an address of this machine for each owner.
func hostOf(i int) string { return fmt.Sprint("127.0.0.", i+1) }

const gossipKey = "000102030405060708090a0b0c0d0e0f"

func newFleet(t *testing.T, n int) (f *fleet, seeds []string) {
	f = &fleet{t: t, binary: build(t, ".", "."), cmds: make([]*exec.Cmd, n)}
	dir, key := t.TempDir(), filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, []byte(gossipKey+"\n"), 0o600))
	for i := range n {
		seeds = append(seeds, strings.Replace(freePort(t), hostOf(0), hostOf(i+1), 1))
	}
	for i, name := range namesOf(n) {
		f.webs = append(f.webs, freePort(t))
		f.args = append(f.args, []string{"-name", name, "-size", fmt.Sprint(n), "-dir", dir, "-gossip", seeds[i], "-seeds", strings.Join(seeds, ","),
			"-key-file", key, "-listen", "tcp://" + hostOf(i+1) + ":0", "-web", f.webs[i]})
	}
	for i := range n {
		f.start(i)
	}
	t.Cleanup(func() {
		for i := range f.cmds {
			f.end(i, syscall.SIGKILL)
		}
	})
	return f, seeds
}

func (f *fleet) start(i int) {
	f.cmds[i] = exec.Command(f.binary, f.args[i]...)
	if testing.Verbose() {
		f.cmds[i].Stderr = os.Stderr
	}
	require.NoError(f.t, f.cmds[i].Start())
}

// end ends a process by a signal, and waits for it.
func (f *fleet) end(i int, by syscall.Signal) error {
	if f.cmds[i].ProcessState != nil {
		return nil
	}
	_ = f.cmds[i].Process.Signal(by)
	return f.cmds[i].Wait()
}

// get fetches a page of an owner.
func (f *fleet) get(i int, page string) (int, string) {
	r, err := http.Get("http://" + f.webs[i] + page)
	if err != nil {
		return 0, err.Error()
	}
	defer r.Body.Close()
	text, _ := io.ReadAll(r.Body)
	return r.StatusCode, string(text)
}

func (f *fleet) ready(i int) {
	require.Eventually(f.t, func() bool { code, _ := f.get(i, "/readyz"); return code == http.StatusOK }, 60*time.Second, 20*time.Millisecond, "kv-%d is not ready", i)
}

const partition = syscall.Signal(0)

var (
	rounds = flag.Int("kv.rounds", long.Or(1, 20), "of TestTrouble")
	frozen = flag.Duration("kv.frozen", long.Or(4*time.Second, 20*time.Second), "how long an owner of TestTrouble is frozen")
)

// namespace is set in a TestTrouble that has a network of its own.
const namespace = "QS_KV_NAMESPACE"

// TestPartition is TestTrouble with partitions, in a network namespace of its own.
func TestPartition(t *testing.T) {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 || os.Getenv(namespace) != "" {
		t.Skip("a network namespace needs Linux and root")
	}
	cmd := exec.Command("unshare", "-n", "sh", "-c", `ip link set lo up && exec "$@"`, "sh", os.Args[0], "-test.run=^TestTrouble$", "-test.v",
		fmt.Sprint("-kv.rounds=", *rounds), fmt.Sprint("-kv.frozen=", *frozen))
	cmd.Env = append(os.Environ(), namespace+"=1")
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", text)
	require.Contains(t, string(text), "partitions: "+fmt.Sprint(*rounds))
	_, line, _ := strings.Cut(string(text), "process_test.go:")
	t.Log(line[:strings.IndexByte(line, '\n')])
}

// divide has nothing reach owner i, or heals that.
func divide(t *testing.T, i int, how string) {
	text, err := exec.Command("ip", "route", how, "blackhole", hostOf(i+1), "table", "local").CombinedOutput()
	require.NoError(t, err, "%s", text)
}

// TestTrouble: owners are killed, frozen, ended and started again under load. No call hangs, every answer is right, and what was
// acknowledged is there at the end.
func TestTrouble(t *testing.T) {
	f, seeds := newFleet(t, 5)
	for i := range f.cmds {
		f.ready(i)
	}
	node, err := qs.Open("tcp://127.0.0.1:0", qs.Config{PeerTimeout: 2 * time.Second, Client: []qs.Interceptor{qs.Retry(qs.RetryPolicy{Attempts: 2})}})
	require.NoError(t, err)
	defer node.Close()
	ctx, stop := context.WithTimeout(context.Background(), time.Hour)
	defer stop()
	key := make([]byte, 16)
	for i := range key {
		key[i] = byte(i)
	}
	g, err := group.Join(ctx, node, group.Options{Name: "test", Seeds: seeds, Key: key, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer g.Close()
	all := &peers{node: node, resolver: g, all: map[string]qs.Peer{}}
	var over atomic.Bool
	var slowest atomic.Int64
	var tasks sync.WaitGroup
	workers, wrong := make([]*worker, 4), make([]error, 4)
	for i := range workers {
		name := fmt.Sprint("w", i)
		w := &worker{c: newClient(node, namesOf(5), all, name), name: name, keys: 20, large: 100_000, timeout: 5 * time.Second,
			rand: rand.New(rand.NewPCG(7, uint64(i))), ledger: ledger{may: map[string][]string{}}}
		workers[i] = w
		tasks.Go(func() {
			for !over.Load() && wrong[i] == nil {
				begun := time.Now()
				wrong[i] = w.step(ctx)
				for took := int64(time.Since(begun)); took > slowest.Load(); {
					slowest.Store(took)
				}
			}
		})
	}
	expect := func(k group.Kind, name string) (happened func()) {
		seen := make(chan struct{}, 16)
		remove := g.OnEvent(func(e group.Event) {
			if e.Kind == k && e.Member.Name == name {
				seen <- struct{}{}
			}
		})
		return func() {
			defer remove()
			select {
			case <-seen:
			case <-time.After(time.Minute):
				t.Errorf("no event: %s %v", name, k)
			}
		}
	}
	kinds, partitions := []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGSTOP}, 0
	if os.Getenv(namespace) != "" {
		kinds = append(kinds, partition)
	}
	for round := range *rounds {
		for k, by := range kinds {
			i := (3*round + k) % 5
			name := namesOf(5)[i]
			want := map[syscall.Signal]group.Kind{syscall.SIGTERM: group.Leaves}[by]
			if by != syscall.SIGTERM {
				want = group.Fails
			}
			ends, back := expect(want, name), expect(group.Back, name)
			switch by {
			case partition:
				divide(t, i, "add")
				ends()
				timer := time.NewTimer(*frozen / 2)
				<-timer.C
				divide(t, i, "del")
				partitions++
			case syscall.SIGSTOP:
				require.NoError(t, f.cmds[i].Process.Signal(by))
				ends()
				timer := time.NewTimer(*frozen)
				<-timer.C
				require.NoError(t, f.cmds[i].Process.Signal(syscall.SIGCONT))
			default:
				if err := f.end(i, by); by == syscall.SIGTERM {
					require.NoError(t, err, "it drains")
				}
				ends()
				f.start(i)
			}
			f.ready(i)
			back()
		}
	}
	over.Store(true)
	tasks.Wait()
	puts, errs := 0, 0
	for i, w := range workers {
		require.NoError(t, wrong[i])
		require.NoError(t, w.audit(ctx))
		puts, errs = puts+w.ledger.puts, errs+w.ledger.errs
	}
	t.Logf("partitions: %d; %d writes, %d operations failed, the slowest took %v", partitions, puts, errs, time.Duration(slowest.Load()))
	require.Greater(t, puts, 100)
	require.Less(t, slices.Max([]int64{slowest.Load()}), int64(20*time.Second), "a call hangs")

	code, text := f.get(0, "/metrics")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, text, `quicksilver_ended_total{code="ok",method="kv/write",side="target"}`)
	code, text = f.get(0, "/")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, text, "kv/write")
	code, _ = f.get(0, "/healthz")
	require.Equal(t, http.StatusOK, code)
}
