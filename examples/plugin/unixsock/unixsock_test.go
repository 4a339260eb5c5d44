package unixsock_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.org/plugin/tour"
	"example.org/plugin/unixsock"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"github.com/quicksilver-rpc/quicksilver/na/natest"
)

// targetEnv makes the test binary be the target of the tour, at the address that it holds.
const targetEnv = "UNIXSOCK_TARGET"

func TestMain(m *testing.M) {
	if addr := os.Getenv(targetEnv); addr != "" {
		serve(addr)
		return
	}
	os.Exit(m.Run())
}

// serve is the target until its standard input ends: it does not outlive the test, whatever becomes of that.
func serve(addr string) {
	target, err := tour.Serve(unixsock.New(), addr)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(target.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// startTarget starts the target and returns its address and what kills it.
func startTarget(t *testing.T, addr string) (at string, kill func()) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), targetEnv+"="+addr)
	cmd.Stderr = os.Stderr
	_, err = cmd.StdinPipe() // ends with this process, or with Wait
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	kill = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	t.Cleanup(kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSpace(line), kill
}

// TestConformance runs the suite that every plugin passes.
func TestConformance(t *testing.T) {
	natest.TestPlugin(t, func(t testing.TB) natest.Network {
		dir := t.TempDir()
		return natest.Network{
			Listen:     func(n int) string { return fmt.Sprintf("unix://%s/%d", dir, n) },
			Origin:     "unix://",
			Nobody:     "unix://" + filepath.Join(dir, "nobody"),
			Plugins:    []na.Plugin{unixsock.New()},
			Concurrent: true,
			Assisted:   true,
		}
	}, nil)
}

// TestTour runs the two sides in two processes. The socket that the killed one leaves can be used again.
func TestTour(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	addr := "unix://" + filepath.Join(t.TempDir(), "target")
	for range 2 {
		at, kill := startTarget(t, addr)
		require.Equal(t, addr, at)
		require.NoError(t, tour.Run(ctx, unixsock.New(), at, kill))
	}
}

// TestInUse checks that a second class at a socket is refused while the first listens.
func TestInUse(t *testing.T) {
	addr := "unix://" + filepath.Join(t.TempDir(), "target")
	target, err := tour.Serve(unixsock.New(), addr)
	require.NoError(t, err)
	_, err = tour.Serve(unixsock.New(), addr)
	require.ErrorIs(t, err, codes.ErrAddrInUse)
	require.NoError(t, target.Close())
	again, err := tour.Serve(unixsock.New(), addr)
	require.NoError(t, err)
	require.NoError(t, again.Close())
}

// TestNames checks that a socket has one name.
func TestNames(t *testing.T) {
	for _, where := range []string{"relative", "/tmp/../tmp/x", "/tmp/x/", "/" + strings.Repeat("long", 30)} {
		_, err := tour.Serve(unixsock.New(), "unix://"+where)
		require.ErrorIs(t, err, codes.ErrInvalid, where)
	}
}
