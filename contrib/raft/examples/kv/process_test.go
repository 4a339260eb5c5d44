//go:build unix

package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/freeport"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// buildCommand builds a command, of the module in dir.
func buildCommand(t *testing.T, dir, pkg string) string {
	out := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command("go", "build", "-o", out, pkg)
	cmd.Dir = dir
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", text)
	return out
}

// TestRun checks that five processes on one machine, started together, under load, with TLS and a
// launcher.
func TestRun(t *testing.T) {
	t.Parallel()
	kv, err := os.Executable()
	require.NoError(t, err)
	run := buildCommand(t, "../../../..", "./cmd/qs")
	cert, key := testcert.Write(t)
	ctx, stop := context.WithTimeout(context.Background(), 8*patience)
	defer stop()
	cmd := exec.CommandContext(ctx, run, "run", "-n", "5", "-t", "2m", "--", kv, "-dir", t.TempDir(),
		"-load", "2s", "-grace", "60s", "-cert", cert, "-cert-key", key, "-ca", cert)
	cmd.Env = append(os.Environ(), serverEnv+"=1")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // which it passes on
	cmd.WaitDelay = patience
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", text)
	require.Contains(t, string(text), "every answer was checked: linearizable")
	require.Equal(t, 5, strings.Count(string(text), ": ready at "), "%s", text)
}

// A fleet is five servers as processes.
type fleet struct {
	t      *testing.T
	binary string
	args   [][]string
	addrs  []string
	webs   []string
	cmds   []*exec.Cmd
}

const gossipKey = "000102030405060708090a0b0c0d0e0f"

func newFleet(t *testing.T, n int) *fleet {
	binary, err := os.Executable()
	require.NoError(t, err)
	f := &fleet{t: t, binary: binary, cmds: make([]*exec.Cmd, n)}
	dir, key := t.TempDir(), filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, []byte(gossipKey+"\n"), 0o600))
	var seeds []string
	for range n {
		seeds = append(seeds, freeport.Addr(t))
		f.webs = append(f.webs, freeport.Addr(t))
		f.addrs = append(f.addrs, "tcp://"+freeport.Addr(t))
	}
	for i := range n {
		f.args = append(f.args, []string{"-name", fmt.Sprint("kv-", i), "-size", fmt.Sprint(n), "-dir",
			dir, "-gossip", seeds[i], "-seeds", strings.Join(seeds, ","),
			"-key-file", key, "-listen", f.addrs[i], "-web", f.webs[i], "-faults", "-grace", "60s"})
		f.start(i)
	}
	t.Cleanup(func() {
		for i := range f.cmds {
			_ = f.end(i, syscall.SIGKILL)
		}
	})
	return f
}

func (f *fleet) start(i int) {
	f.cmds[i] = exec.Command(f.binary, f.args[i]...)
	f.cmds[i].Env = append(os.Environ(), serverEnv+"=1")
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

// get fetches a page of a server.
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
	require.Eventually(f.t, func() bool { code, _ := f.get(i, "/readyz"); return code == http.StatusOK },
		4*patience, 20*time.Millisecond, "kv-%d is not ready", i)
}

// leader returns the number of the server that leads.
func (f *fleet) leader(node *qs.Node) (leader int) {
	require.Eventually(f.t, func() bool {
		leader = slices.IndexFunc(f.addrs, func(addr string) bool { return isLeader(node, addr) })
		return leader >= 0
	}, 4*patience, 20*time.Millisecond)
	return leader
}

// isLeader reports whether the server at an address is the leader.
func isLeader(node *qs.Node, addr string) bool {
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	peer, err := node.Peer(ctx, addr)
	if err != nil {
		return false
	}
	s, err := Status.Call(ctx, peer, struct{}{})
	return err == nil && s.State == raft.Leader.String()
}

// isolate has a server talk to no other one, or again. One that cannot be called does without.
func (f *fleet) isolate(node *qs.Node, i int, alone bool) {
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	if peer, err := node.Peer(ctx, f.addrs[i]); err == nil {
		_, _ = Isolate.Call(ctx, peer, alone)
	}
}

// replace ends a server for good, and starts another one under a new name.
func (f *fleet) replace(node *qs.Node, i int) {
	old, name := fmt.Sprint("kv-", i), fmt.Sprint("kv-", len(f.cmds))
	require.NoError(f.t, f.end(i, syscall.SIGTERM))
	c := NewClient(node, func() []string { return f.addrs })
	remove, stop := context.WithTimeout(context.Background(), 2*patience)
	defer stop()
	require.NoError(f.t, c.Remove(remove, old))
	args := append([]string{}, f.args[i]...)
	args[1] = name
	for k, a := range args {
		switch a {
		case "-gossip", "-web":
			args[k+1] = freeport.Addr(f.t)
		case "-listen":
			args[k+1] = "tcp://" + freeport.Addr(f.t)
			f.addrs = append(f.addrs, args[k+1])
		}
	}
	f.args, f.cmds = append(f.args, args), append(f.cmds, nil)
	f.webs = append(f.webs, args[slices.Index(args, "-web")+1])
	f.start(len(f.cmds) - 1)
	f.ready(len(f.cmds) - 1)
	ctx, stop := context.WithTimeout(context.Background(), 4*patience)
	defer stop()
	var index uint64
	require.Eventually(f.t, func() (done bool) {
		var err error
		index, err = c.Put(ctx, PutIn{Key: "for the new one", Value: name})
		return err == nil
	}, 4*patience, 20*time.Millisecond)
	peer, err := node.Peer(ctx, f.addrs[len(f.addrs)-1])
	require.NoError(f.t, err)
	require.Eventually(f.t, func() bool {
		got, err := Get.Call(ctx, peer, GetIn{Key: "for the new one", Stale: true})
		return err == nil && got.Value == name && got.Index >= index
	}, patience, 20*time.Millisecond)
	s, err := Status.Call(ctx, peer, struct{}{})
	require.NoError(f.t, err)
	require.Contains(f.t, s.Servers, name)
	require.NotContains(f.t, s.Servers, old)
}

// injectFault makes a fault of a kind, and ends it.
func (f *fleet) injectFault(node *qs.Node, kind string, i int, r *rand.Rand) {
	pause := func(least, more int) {
		t := time.NewTimer(time.Duration(least+r.IntN(more)) * time.Millisecond)
		<-t.C
	}
	switch kind {
	case "killed":
		_ = f.end(i, syscall.SIGKILL)
		pause(100, 400)
		f.start(i)
		f.ready(i)
	case "stopped":
		require.NoError(f.t, f.cmds[i].Process.Signal(syscall.SIGSTOP))
		pause(1000, 2500)
		require.NoError(f.t, f.cmds[i].Process.Signal(syscall.SIGCONT))
	case "cut off":
		f.isolate(node, i, true)
		pause(1000, 2000)
		f.isolate(node, i, false)
	case "full": // its disk: a leader cannot continue
		f.fillDisk(i, true)
		require.Eventually(f.t, func() bool { return !isLeader(node, f.addrs[i]) }, 4*patience,
			20*time.Millisecond, "kv-%d leads with a full disk", i)
		pause(500, 1000)
		f.fillDisk(i, false)
		if !f.isRunning(i) {
			_ = f.end(i, syscall.SIGKILL)
			f.start(i)
		}
		f.ready(i)
	case "ended":
		require.NoError(f.t, f.end(i, syscall.SIGTERM))
		f.start(i)
		f.ready(i)
	}
	pause(300, 300)
}

// freeze stops a follower for 5 s, and prints how long writes take meanwhile, and took in the 5 s before.
func (f *fleet) freeze(node *qs.Node, h *history) {
	i := (f.leader(node) + 1) % len(f.cmds)
	pause := func() time.Duration {
		<-time.NewTimer(5 * time.Second).C
		return time.Since(h.start)
	}
	begin := time.Since(h.start)
	frozen := pause()
	require.NoError(f.t, f.cmds[i].Process.Signal(syscall.SIGSTOP))
	end := pause()
	require.NoError(f.t, f.cmds[i].Process.Signal(syscall.SIGCONT))
	f.t.Logf("beside a frozen follower %s; before %s", h.writeLatency(frozen, end),
		h.writeLatency(begin, frozen))
}

// roundFaults returns the faults of a round, in their order. Of the long run each fourth round has the slow ones, too: half an hour is some 200 killed, 100
// stopped and 50 cut off, and more on a machine that does nothing else.
func roundFaults(round uint64) (kinds []string) {
	slow := []string{"full", "frozen follower", "ended"}
	switch {
	case !long.On:
		kinds = []string{"killed", "stopped", "full", "ended"} // TestLinearizable cuts servers off
	case round%4 == 1:
		kinds = append(slow, "killed", "stopped", "killed", "cut off", "killed", "stopped", "killed")
	default:
		kinds = []string{"killed", "stopped", "killed", "cut off", "killed", "stopped", "killed"}
	}
	if runtime.GOOS != "linux" {
		kinds = slices.DeleteFunc(kinds, func(kind string) bool { return kind == "full" })
	}
	return kinds
}

// TestProcesses checks five processes, one of which at a time is killed, stopped, cut off and
// ended, or has a full disk, with files that are synced. In a short run each fault occurs once, at
// the leader.
func TestProcesses(t *testing.T) {
	t.Parallel()
	t.Logf("seed %d", *seedFlag)
	f := newFleet(t, 5)
	for i := range f.cmds {
		f.ready(i)
	}
	node := openNode(t, "tcp://", 2*time.Second)
	defer node.Close()
	r := rand.New(rand.NewPCG(*seedFlag, 100))
	count := map[string]int{}
	for begin, round := time.Now(), uint64(1); round == 1 || time.Since(begin) < *proofTime; round++ {
		kinds := roundFaults(round)
		run, stop := context.WithCancel(context.Background())
		h := newHistory(6)
		var clients sync.WaitGroup
		for i := range 8 {
			clients.Go(func() {
				h.runClient(run, i, NewClient(node, func() []string { return f.addrs }),
					rand.New(rand.NewPCG(*seedFlag+round, uint64(i+1))))
			})
		}
		for _, kind := range kinds {
			i := f.leader(node)
			if long.On && r.IntN(2) == 0 {
				i = r.IntN(len(f.cmds))
			}
			if kind == "frozen follower" {
				f.freeze(node, h)
			} else {
				f.injectFault(node, kind, i, r)
			}
			count[kind]++
			was := h.ackedWrites()
			require.Eventually(t, func() bool { return h.ackedWrites() > was }, 4*patience,
				time.Millisecond, "no write after %s", kind)
		}
		stop()
		clients.Wait()
		h.readAll(NewClient(node, func() []string { return f.addrs }))
		t.Log(h.summary())
		require.NoError(t, h.checkLinearizable(time.Minute))
	}
	t.Log(count)
	f.replace(node, 0)
	// A call is counted when it ends. The pipeline of kv-0 has: at the server that led, or, if kv-0 led, at the ones that followed.
	require.Eventually(t, func() bool {
		return slices.ContainsFunc([]int{1, 2, 3, 4}, func(i int) bool {
			_, page := f.get(i, "/metrics")
			return strings.Contains(page, `method="raft/pipeline"`)
		})
	}, patience, 20*time.Millisecond)
	_, page := f.get(1, "/")
	require.Contains(t, page, "kv-1")
}
