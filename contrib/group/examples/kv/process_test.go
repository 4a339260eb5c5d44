//go:build unix

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
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

// A fleet is owners as processes. In a TestTrouble that has a network of its own each is in a namespace, at a bridge:
//
//	test ═ 10.77.0.1 ═ bridge ┬─ 10.77.0.2 ═ kv-0
//	                          ├─ 10.77.0.3 ═ kv-1 …
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
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// hostOf returns an address for the test, 0, and each owner, 1 and up.
func hostOf(i int) string {
	if divided() {
		return fmt.Sprint("10.77.0.", i+1)
	}
	return fmt.Sprint("127.0.0.", i+1)
}

const gossipKey = "000102030405060708090a0b0c0d0e0f"

func newFleet(t *testing.T, n int) (f *fleet, seeds []string) {
	f = &fleet{t: t, binary: build(t, ".", "."), cmds: make([]*exec.Cmd, n)}
	if divided() {
		f.connect(n)
	}
	dir, key := t.TempDir(), filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, []byte(gossipKey+"\n"), 0o600))
	for i := range n {
		seeds = append(seeds, net.JoinHostPort(hostOf(i+1), freePort(t)))
	}
	for i, name := range namesOf(n) {
		f.webs = append(f.webs, net.JoinHostPort(hostOf(i+1), freePort(t)))
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
	if divided() {
		f.cmds[i] = exec.Command("ip", append([]string{"netns", "exec", fmt.Sprint("kv-", i), f.binary}, f.args[i]...)...) // its process becomes the owner's
	}
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
