package qs_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

type graceIn struct {
	How  string
	Body qs.Source
	Room qs.Sink
}

var grace = qs.Define[graceIn, string]("test/grace", qs.Idempotent())

// graceServer serves grace: the first of its servers waits, in the middle of its work, for the end
// of its context, which stop causes.
func graceServer(n *qs.Node, who string, stop func()) {
	grace.Handle(n, func(ctx context.Context, in graceIn) (string, error) {
		from, into := in.Body.Reader(ctx), in.Room.Writer(ctx)
		wait := func() error {
			if who != "one" {
				return nil
			}
			stop()
			err := n.Sleep(ctx, time.Hour)
			if in.How == "own" {
				return qs.Errorf(qs.ErrNotFound, "own")
			}
			return err
		}
		switch in.How {
		case "up":
			if _, err := io.ReadFull(from, make([]byte, 1<<20)); err != nil {
				return "", err
			}
			_ = wait()
			n, err := io.Copy(io.Discard, from)
			if err == nil && n != 19<<20 {
				err = qs.Errorf(qs.ErrBadInput, "%d bytes are missing", 19<<20-n)
			}
			return who, err
		case "down":
			if _, err := into.Write(randomBytes(1, 1<<20)); err != nil {
				return "", err
			}
			_ = wait()
			_, err := into.Write(randomBytes(1, 20<<20)[1<<20:])
			return who, err
		}
		return who, wait()
	})
}

// testGraceCalls makes each kind of call of a new pair of servers, the first of which ends while it is at work.
func testGraceCalls(t *testing.T, begin func(who string) (addr string, served func() error), client func(cfg qs.Config) *qs.Node) {
	for _, how := range []string{"plain", "up", "down", "own"} {
		addr, served := begin("one")
		second, _ := begin("two")
		n := client(qs.Config{ClientInterceptors: []qs.Interceptor{qs.Retry(qs.RetryPolicy{})}})
		ctx, cancel := n.WithTimeout(context.Background(), 5*time.Minute)
		to, err := n.Peer(ctx, addr, second)
		require.NoError(t, err)
		room := make([]byte, 20<<20)
		got, err := grace.Call(ctx, to, graceIn{how, qs.Bytes(make([]byte, 20<<20)), qs.Buffer(room)})
		if how == "own" {
			require.ErrorIs(t, err, qs.ErrNotFound, "the handler's own error")
		} else {
			require.NoError(t, err, how)
			require.Equal(t, "two", got, how)
		}
		if how == "down" {
			require.True(t, bytes.Equal(randomBytes(1, 20<<20), room))
		}
		var left *hg.ShutdownError
		require.ErrorAs(t, served(), &left, how)
		require.Equal(t, 1, left.Handlers, how)
		require.Contains(t, left.Error(), "handler of test/grace ", how)
		cancel()
		require.NoError(t, n.Close())
	}
}

// TestShutdownTimeoutFailsNoRetry checks that a server that ends in order, and whose ShutdownTimeout is over, fails
// no idempotent call with Retry: when its handler returns the error of its context the call is made
// at the next server.
func TestShutdownTimeoutFailsNoRetry(t *testing.T) {
	for _, at := range []string{"tcp://127.0.0.1:0", "udp://127.0.0.1:0", "sm://*"} {
		scheme, _, _ := strings.Cut(at, "://")
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			if scheme == "sm" && runtime.GOOS != "linux" {
				t.Skip("sm needs Linux")
			}
			testGraceCalls(t, func(who string) (string, func() error) {
				n, err := qs.Open(at, qs.Config{ShutdownTimeout: -1})
				require.NoError(t, err)
				ctx, stop := context.WithCancel(context.Background())
				graceServer(n, who, stop)
				ended := make(chan error, 1)
				go func() { ended <- n.Serve(ctx) }()
				t.Cleanup(func() { require.NoError(t, n.Close()) })
				return n.Addr().String(), func() error { return <-ended }
			}, func(cfg qs.Config) *qs.Node { return open(t, scheme+"://", cfg) })
		})
	}
	t.Run("sim", func(t *testing.T) {
		t.Parallel()
		w := sim.NewWorld(sim.Config{Seed: 1})
		defer w.Close()
		w.Go("client", func() {
			var all []*qs.Node
			testGraceCalls(t, func(who string) (addr string, served func() error) {
				var n *qs.Node
				var err error
				over := false
				ctx, stop := context.WithCancel(context.Background())
				w.Go(who, func() {
					n = simulated(t, w, fmt.Sprint("sim://", who, len(all)), qs.Config{ShutdownTimeout: -1})
					graceServer(n, who, stop)
					err = n.Serve(ctx)
					over = true
				})
				w.Sleep(time.Millisecond)
				all = append(all, n)
				return n.Addr().String(), func() error {
					for !over {
						w.Sleep(time.Millisecond)
					}
					return err
				}
			}, func(cfg qs.Config) *qs.Node { return simulated(t, w, "sim://", cfg) })
			for _, n := range all {
				require.NoError(t, n.Close())
			}
		})
		require.NoError(t, w.Run(time.Hour))
	})
}
