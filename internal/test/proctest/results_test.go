//go:build unix

package proctest

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// numbers is a stream that ends when its caller does.
var numbers = qs.DefineStream[int, int]("test/numbers")

// serveNumbers serves it, and calls ended when a handler has returned: with nothing if its request
// continues.
func serveNumbers(n *qs.Node, ended func(why error)) {
	numbers.Handle(n, func(ctx context.Context, from int, send func(int) error) error {
		for i := from; ; i++ {
			if err := send(i); err != nil {
				<-ctx.Done() // the end of the session, which send may report a moment before
				ended(context.Cause(ctx))
				return err
			}
		}
	})
}

func init() { roles["numbers"], roles["reader"] = numbersChild, readerChild }

func (tr transport) nodeConfig() qs.Config { return qs.Config{PeerTimeout: time.Second} }

// numbersChild serves the stream until it is killed.
func numbersChild() error {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	n, err := qs.Open(os.Getenv(listenEnv), transport{}.nodeConfig())
	if err != nil {
		return err
	}
	serveNumbers(n, func(error) {})
	fmt.Println(n.Addr())
	return n.Serve(context.Background())
}

// readerChild reads a number of items, prints a line, and then reads one a second.
func readerChild() error {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	n, err := qs.Open(os.Getenv(listenEnv), transport{}.nodeConfig())
	if err != nil {
		return err
	}
	to, err := n.Peer(context.Background(), os.Getenv(peerEnv))
	if err != nil {
		return err
	}
	fmt.Println(n.Addr())
	step, _ := strconv.Atoi(os.Getenv(sizeEnv))
	left := step
	for _, err := range numbers.Call(context.Background(), to, 0) {
		if err != nil {
			return err
		}
		if left--; left < 0 {
			fmt.Println("there")
			<-time.NewTimer(time.Second).C
		}
	}
	return nil
}

// streamSteps are the items at which something happens: in the first message, between two, and when
// windows are full.
var streamSteps = long.Or([]int{0, 1, 30_000}, []int{0, 1, 10, 1000, 10_000, 20_000, 30_000, 40_000, 50_000, 100_000, 200_000, 1_000_000})

// eachEnd runs f for every transport, each step, and each way in which a process ends.
func eachEnd(t *testing.T, f func(t *testing.T, tr transport, step int, end func(p *process))) {
	for _, tr := range transports {
		if raceflag.Enabled && tr.name != transports[0].name {
			continue // the others are for the plain tests
		}
		for how, end := range map[string]func(p *process){"kill": (*process).kill, "stop": (*process).stop} {
			for _, step := range streamSteps {
				t.Run(fmt.Sprint(tr.name, "/", how, "/", step), func(t *testing.T) {
					t.Parallel()
					f(t, tr, step, end)
				})
			}
		}
	}
}

// TestStreamOfEndedTarget checks a stream whose handler's process is killed, or stopped, at some
// item: the loop gets no item twice or out of order, and then the end.
func TestStreamOfEndedTarget(t *testing.T) {
	t.Parallel()
	eachEnd(t, func(t *testing.T, tr transport, step int, end func(p *process)) {
		p := startRole(t, "numbers", listenEnv+"="+tr.listenAddr())
		n, err := qs.Open(tr.origin, tr.nodeConfig())
		require.NoError(t, err)
		defer func() { require.NoError(t, n.Close()) }()
		to, err := n.Peer(context.Background(), p.Addr)
		require.NoError(t, err)
		want := 0
		var last error
		for i, err := range numbers.Call(context.Background(), to, 0) {
			require.NoError(t, last)
			if last = err; err != nil {
				continue
			}
			require.Equal(t, want, i)
			if want++; want == step+1 {
				end(p)
			}
		}
		require.ErrorIs(t, last, qs.ErrPeerLost)
		require.Greater(t, want, step)
	})
}

// TestStreamToEndedOrigin checks a stream whose caller's process is killed, or stopped: the context
// of the handler ends.
func TestStreamToEndedOrigin(t *testing.T) {
	t.Parallel()
	eachEnd(t, func(t *testing.T, tr transport, step int, end func(p *process)) {
		n, err := qs.Open(tr.listenAddr(), tr.nodeConfig())
		require.NoError(t, err)
		ended := make(chan error, 1)
		serveNumbers(n, func(why error) { ended <- why })
		ctx, stop := context.WithCancel(context.Background())
		served := make(chan error, 1)
		go func() { served <- n.Serve(ctx) }()
		defer func() {
			stop()
			require.NoError(t, <-served)
		}()
		p := startRole(t, "reader", listenEnv+"="+tr.origin, peerEnv+"="+n.Addr().String(), fmt.Sprint(sizeEnv, "=", step))
		require.Equal(t, "there", p.readLine())
		end(p)
		require.ErrorIs(t, <-ended, qs.ErrPeerLost)
	})
}
