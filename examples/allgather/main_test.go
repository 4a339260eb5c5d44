package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/rendezvous"
	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
)

// memberEnv lets the test binary be one of the processes.
const memberEnv = "QUICKSILVER_ALLGATHER"

func TestMain(m *testing.M) {
	if os.Getenv(memberEnv) != "" {
		main()
		return
	}
	leak.Main(m)
}

const (
	size     = 4
	patience = 30 * time.Second
)

// A member is one process.
type member struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
	errs  bytes.Buffer
}

// startMembers starts all, and returns when each has printed that it has started. stop ends the
// server, as a crash would.
func startMembers(t *testing.T, args ...string) (members []*member, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = rendezvous.Serve(ctx, l, rendezvous.ServerConfig{Size: size, Auth: protocol.Auth{Secret: []byte{1}}})
	}()
	stop = func() {
		cancel()
		<-served
	}
	t.Cleanup(stop)
	alive, kill := context.WithTimeout(context.Background(), 2*patience)
	t.Cleanup(kill)
	for rank := range size {
		m := &member{cmd: exec.CommandContext(alive, os.Args[0], args...)}
		m.cmd.Env = append(os.Environ(), memberEnv+"=1", "GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0",
			fmt.Sprintf("%s=%d", rendezvous.EnvRank, rank), fmt.Sprintf("%s=%d", rendezvous.EnvSize, size),
			rendezvous.EnvAddr+"="+l.Addr().String(), rendezvous.EnvKey+"=01")
		m.cmd.Stderr = &m.errs
		out, err := m.cmd.StdoutPipe()
		require.NoError(t, err)
		m.lines = bufio.NewScanner(out)
		require.NoError(t, m.cmd.Start())
		members = append(members, m)
	}
	for rank, m := range members {
		require.True(t, m.lines.Scan(), "rank %d: %s", rank, &m.errs)
		require.Equal(t, fmt.Sprintf("rank %d of %d has started", rank, size), m.lines.Text())
	}
	return members, stop
}

// end waits for a process.
func (m *member) end() (last string, err error) {
	for m.lines.Scan() {
		last = m.lines.Text()
	}
	return last, m.cmd.Wait()
}

// eachTransport runs f for each transport between processes.
func eachTransport(t *testing.T, f func(t *testing.T, listen string)) {
	for _, scheme := range hg.Schemes() {
		listen, ok := map[string]string{"tcp": "tcp://127.0.0.1:0", "udp": "udp://127.0.0.1:0", "sm": "sm://*"}[scheme]
		if !ok {
			continue // sim: one process only
		}
		t.Run(scheme, func(t *testing.T) { f(t, listen) })
	}
}

func TestAllgather(t *testing.T) {
	eachTransport(t, func(t *testing.T, listen string) {
		members, _ := startMembers(t, "-listen", listen)
		for rank, m := range members {
			last, err := m.end()
			require.NoError(t, err, "rank %d: %s", rank, &m.errs)
			require.Equal(t, fmt.Sprintf("rank %d has 4 parts: [part0 part1 part2 part3]", rank), last)
		}
	})
}

// TestKilled checks that a process that is killed is named by all others, which end with an error.
func TestKilled(t *testing.T) {
	eachTransport(t, func(t *testing.T, listen string) {
		members, _ := startMembers(t, "-listen", listen, "-for", "1m", "-peer-timeout", "1s")
		require.NoError(t, members[2].cmd.Process.Kill())
		for rank, m := range members {
			_, err := m.end()
			require.Error(t, err)
			if rank != 2 {
				require.Contains(t, m.errs.String(), "allgather: rank 2 is lost: ", "rank %d", rank)
			}
		}
	})
}

// TestServerGone (X-T6) checks that once the startup is complete the server may end.
func TestServerGone(t *testing.T) {
	members, stop := startMembers(t, "-for", "200ms")
	stop()
	for rank, m := range members {
		last, err := m.end()
		require.NoError(t, err, "rank %d: %s", rank, &m.errs)
		require.True(t, strings.HasSuffix(last, "[part0 part1 part2 part3]"), last)
	}
}
