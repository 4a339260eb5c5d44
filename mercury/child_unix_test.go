//go:build unix

package mercury_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/mercury"
)

// TestChild is not a test but the process of TestStopped: it lends memory, answers nothing, and stops at the end of its input.
func TestChild(t *testing.T) {
	if os.Getenv("MERCURY_CHILD") == "" {
		return
	}
	n := open(t, mercury.Config{})
	called := make(chan struct{}, 1)
	n.Handle(1, func(r *mercury.Request) {
		r.Detach()
		called <- struct{}{}
	})
	region, err := n.Lend(make([]byte, 256<<20), mercury.Read|mercury.Write)
	require.NoError(t, err)
	wire, _ := region.Bulk().AppendProc(nil)
	fmt.Printf("child %s %x\n", n.Addr(), wire)
	<-called
	fmt.Println("child called")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
}

// TestStopped stops or kills a process during a call, a read and a write: contexts end them when it
// hangs, and they end at once when it exits.
func TestStopped(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestChild$")
		cmd.Env = append(os.Environ(), "MERCURY_CHILD=1")
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		next := func() []string {
			for lines.Scan() {
				if f := strings.Fields(lines.Text()); len(f) > 1 && f[0] == "child" {
					return f[1:]
				}
			}
			t.Error("the child is gone")
			return []string{"", ""}
		}
		first := next()
		var wire []byte
		_, err = fmt.Sscanf(first[1], "%x", &wire)
		require.NoError(t, err)
		b, _, err := mercury.ParseBulk(wire)
		require.NoError(t, err)
		n := open(t, mercury.Config{})
		ctx, cancel := context.WithCancel(testContext(t))
		errs := make(chan error, 3)
		go func() {
			_, err := n.Call(ctx, first[0], 1, nil)
			errs <- err
		}()
		next()
		m := n.Remote(first[0], b)
		buf := make([]byte, b.Len())
		started := make(chan struct{}, 2)
		for _, move := range []func(context.Context, []byte, int64) (int, error){m.Get, m.Put} {
			mine := buf[:1<<20]
			go func() {
				var err error
				for i := 0; err == nil; i++ { // until it blocks
					if _, err = move(ctx, mine, 0); i == 0 {
						started <- struct{}{}
					}
				}
				errs <- err
			}()
			buf = buf[1<<20:]
		}
		<-started
		<-started
		require.NoError(t, cmd.Process.Signal(sig))
		want := mercury.ErrPeerLost
		if sig == syscall.SIGSTOP {
			want = mercury.ErrCanceled
			_, err := n.Call(shortContext(t), first[0], 1, nil)
			require.True(t, errors.Is(err, mercury.ErrTimeout), "%v", err)
			cancel()
		}
		for range 3 {
			err := <-errs
			if sig == syscall.SIGKILL && errors.Is(err, mercury.ErrUnreachable) {
				continue // of a read or a write that began when the process had exited
			}
			require.ErrorIs(t, err, want)
		}
		cancel()
		_ = cmd.Process.Kill()
		_ = in.Close()
		_ = cmd.Wait()
	}
}

func shortContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}
