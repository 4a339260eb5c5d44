//go:build linux

package group_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/contrib/group"
	"github.com/quicksilver-rpc/quicksilver/internal/test/freeport"
	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

const (
	manyEnv   = "QS_GROUP_MEMBERS" // "RANK SEED" of a child of TestMany
	children  = 8
	ownersPer = 8
)

func TestMain(m *testing.M) {
	if text := os.Getenv(manyEnv); text != "" {
		rank, seed, _ := strings.Cut(text, " ")
		if err := runMembers(rank, seed); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	leak.Main(m)
}

// runMembers is a child: several members, each of which prints a line when its view is complete, and when it has lost
// one. A byte of its input has the first of them die.
func runMembers(rank, seed string) error {
	var groups []*group.Group
	for i := range ownersPer {
		n, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
		if err != nil {
			return err
		}
		o := group.Options{Name: rank + "-" + strconv.Itoa(i), Seeds: []string{seed}, Logger: quiet}
		if rank == "0" && i == 0 {
			o.Gossip = seed
		}
		g, err := group.Join(context.Background(), n, o)
		if err != nil {
			return err
		}
		groups = append(groups, g)
		all := false
		go func() {
			for range g.Events(context.Background()) {
				switch n := len(g.View().Members); {
				case !all && n == children*ownersPer:
					all = true
					fmt.Println("all")
				case all && n == children*ownersPer-1:
					fmt.Println("lost")
				}
			}
		}()
	}
	b := make([]byte, 1)
	_, err := os.Stdin.Read(b)
	if err == nil {
		_ = groups[0].Close()
		_, err = os.Stdin.Read(b) // until the parent ends
	}
	return err
}

// TestMany checks that 64 members in 8 processes find each other, and all report a member that
// fails.
func TestMany(t *testing.T) {
	if !long.On {
		t.Skip("only in the long run")
	}
	seed := freeport.Addr(t)
	lines := make(chan string, 1000)
	begun := time.Now()
	var cmds []*exec.Cmd
	var kill io.Writer
	for i := range children {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %s", manyEnv, i, seed))
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		go func() {
			for s := bufio.NewScanner(out); s.Scan(); {
				lines <- s.Text()
			}
		}()
		t.Cleanup(func() { _ = in.Close(); _ = cmd.Process.Kill(); _ = cmd.Wait() })
		cmds, kill = append(cmds, cmd), in
	}
	count := func(want string, n int) time.Duration {
		limit := time.After(time.Minute)
		for n > 0 {
			select {
			case line := <-lines:
				require.Contains(t, []string{"all", "lost"}, line)
				if line == want {
					n--
				}
			case <-limit:
				require.Zero(t, n, "members that do not print %q", want)
			}
		}
		return time.Since(begun)
	}
	joined := count("all", children*ownersPer)
	ticks, bytes, idle := processorTime(t, cmds), loopbackBytes(t), 10*time.Second
	timer := time.NewTimer(idle)
	<-timer.C
	used, sent := processorTime(t, cmds)-ticks, loopbackBytes(t)-bytes
	begun = time.Now()
	_, err := kill.Write([]byte{1})
	require.NoError(t, err)
	lost := count("lost", children*ownersPer-1)
	t.Logf("all joined after %v; idle, a member uses %.2f %% of a core and sends %.0f bytes/s, with all else on loopback; all know of one that died after %v",
		joined, 100*used.Seconds()/idle.Seconds()/(children*ownersPer), float64(sent)/idle.Seconds()/(children*ownersPer), lost)
}

// processorTime returns the processor time of processes.
func processorTime(t *testing.T, cmds []*exec.Cmd) (d time.Duration) {
	for _, cmd := range cmds {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		require.NoError(t, err)
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		for _, f := range fields[11:13] {
			n, err := strconv.Atoi(f)
			require.NoError(t, err)
			d += time.Duration(n) * 10 * time.Millisecond
		}
	}
	return d
}

// loopbackBytes returns how many bytes have gone over the loopback interface.
func loopbackBytes(t *testing.T) (n int64) {
	text, err := os.ReadFile("/proc/net/dev")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); fields[0] == "lo:" {
			n, err = strconv.ParseInt(fields[1], 10, 64)
			require.NoError(t, err)
		}
	}
	return n
}
