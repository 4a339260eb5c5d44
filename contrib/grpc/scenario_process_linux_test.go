package grpcqs_test

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	grpcqs "github.com/quicksilver-rpc/quicksilver/contrib/grpc"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// processVariable has the process of a test be a server.
const processVariable = "GRPCQS_TEST_SERVER"

// TestServerProcess is the server of TestProcesses: it prints its address, and serves until its
// input ends.
func TestServerProcess(t *testing.T) {
	if os.Getenv(processVariable) == "" {
		return
	}
	n, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
	require.NoError(t, err)
	d := echoDouble()
	d.unary = func(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	d.register(grpcqs.NewServer(n))
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	os.Stdout.WriteString("at " + n.Addr().String() + "\n")
	require.NoError(t, n.Serve(ctx))
}

// startServerProcess starts a server process, and returns its address.
func startServerProcess(t *testing.T) (*exec.Cmd, string) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestServerProcess$")
	cmd.Env = append(os.Environ(), processVariable+"=1")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for s := bufio.NewScanner(out); s.Scan(); {
		if addr, ok := strings.CutPrefix(s.Text(), "at "); ok {
			return cmd, addr
		}
	}
	t.Fatal("the server process has printed nothing")
	return nil, ""
}

// TestProcesses checks a server process that is killed, or frozen, while it serves a call of each
// kind: the calls end with Unavailable when it is killed, and at their deadline when it is frozen,
// with the fate MaybeRan.
func TestProcesses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		signal syscall.Signal
		within time.Duration
		want   codes.Code
	}{
		"kill":   {syscall.SIGKILL, time.Minute, codes.Unavailable},
		"freeze": {syscall.SIGSTOP, 300 * time.Millisecond, codes.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd, addr := startServerProcess(t)
			n := tcpNetwork(t)
			node, err := qs.Open(n.client, n.config())
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, node.Close()) })
			to, err := node.Peer(testContext(t), addr)
			require.NoError(t, err)
			tc := testgrpc.NewTestServiceClient(grpcqs.NewClient(to))
			begun, ended := make(chan bool, 3), make(chan error, 3)
			ctx, cancel := context.WithCancel(testContext(t))
			defer cancel()
			limited := func() context.Context {
				ctx, cancel := context.WithTimeout(ctx, c.within)
				t.Cleanup(cancel)
				return ctx
			}
			both, err := tc.FullDuplexCall(ctx) // has no deadline of its own
			require.NoError(t, err)
			up, err := tc.StreamingInputCall(ctx)
			require.NoError(t, err)
			require.NoError(t, up.Send(&testgrpc.StreamingInputCallRequest{}))
			require.NoError(t, both.Send(newRequest(1)))
			_, err = both.Recv()
			require.NoError(t, err)
			require.NoError(t, cmd.Process.Signal(c.signal))
			go func() {
				begun <- true
				_, err := tc.UnaryCall(limited(), newUnaryRequest(1))
				ended <- err
			}()
			go func() {
				begun <- true
				s, err := tc.FullDuplexCall(limited())
				if err == nil {
					_, err = s.Recv()
				}
				ended <- err
			}()
			for range 2 {
				<-begun
				err := <-ended
				require.Equal(t, c.want, status.Code(err), "%v", err)
				require.NotEqual(t, qs.Ran, grpcqs.FateOf(err))
			}
			if c.signal == syscall.SIGSTOP {
				cancel()
				c.want = codes.Canceled
			}
			_, err = both.Recv()
			require.Equal(t, c.want, status.Code(err), "%v", err)
			require.Equal(t, qs.MaybeRan, grpcqs.FateOf(err))
			_, err = up.CloseAndRecv()
			require.Equal(t, c.want, status.Code(err), "%v", err)
		})
	}
}
