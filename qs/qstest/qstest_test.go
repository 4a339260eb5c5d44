package qstest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
	"github.com/quicksilver-rpc/quicksilver/qs/qstest"
)

func TestMain(m *testing.M) { leak.Main(m) }

var Greet = qs.Define[string, string]("greet")

func TestGreet(t *testing.T) {
	server := qstest.Serve(t, func(node *qs.Node) {
		Greet.Handle(node, func(_ context.Context, name string) (string, error) { return "hello, " + name, nil })
	})
	answer, err := Greet.Call(t.Context(), server, "Ada")
	require.NoError(t, err)
	require.Equal(t, "hello, Ada", answer)
}

// TestServeLeavesNothing checks that the nodes are closed at the end of the test, and the handler
// of a canceled call has returned.
func TestServeLeavesNothing(t *testing.T) {
	leak.Check(t)
	returned := false
	t.Run("inner", func(t *testing.T) {
		begun := make(chan struct{})
		server := qstest.Serve(t, func(node *qs.Node) {
			Greet.Handle(node, func(ctx context.Context, _ string) (string, error) {
				close(begun)
				<-ctx.Done()
				returned = true
				return "", ctx.Err()
			})
		})
		ctx, stop := context.WithCancel(context.Background())
		failed := make(chan error, 1)
		go func() {
			_, err := Greet.Call(ctx, server, "Ada")
			failed <- err
		}()
		<-begun
		stop()
		require.ErrorIs(t, <-failed, qs.ErrCanceled)
	})
	require.True(t, returned)
}

// TestServeWith checks that each node has its own configuration.
func TestServeWith(t *testing.T) {
	var seen []string
	note := func(side string) []qs.Interceptor {
		return []qs.Interceptor{func(ctx context.Context, _ *qs.Call, next func(context.Context) error) error {
			seen = append(seen, side)
			return next(ctx)
		}}
	}
	server := qstest.ServeWith(t, qs.Config{ServerInterceptors: note("server")}, qs.Config{ClientInterceptors: note("client")},
		func(node *qs.Node) {
			Greet.Handle(node, func(context.Context, string) (string, error) { return "", nil })
		})
	_, err := Greet.Call(t.Context(), server, "Ada")
	require.NoError(t, err)
	require.Equal(t, []string{"client", "server"}, seen)
}

// A failingTB is a test that records how it ends.
type failingTB struct {
	testing.TB
	text string
}

func (f *failingTB) Helper() {}

func (f *failingTB) Fatalf(format string, args ...any) {
	f.text = fmt.Sprintf(format, args...)
	panic(f)
}

func TestServeCannotOpen(t *testing.T) {
	for side, open := range map[string]func(t testing.TB){
		"server": func(t testing.TB) { qstest.ServeWith(t, qs.Config{PeerTimeout: -1}, qs.Config{}, func(*qs.Node) {}) },
		"client": func(t testing.TB) { qstest.ServeWith(t, qs.Config{}, qs.Config{PeerTimeout: -1}, func(*qs.Node) {}) },
	} {
		t.Run(side, func(t *testing.T) {
			f := &failingTB{TB: t}
			require.Panics(t, func() { open(f) })
			require.Contains(t, f.text, "qstest: open the "+side+": ")
			require.Contains(t, f.text, "PeerTimeout")
		})
	}
}

// TestWait checks values, a close and the end of the context, outside of the simulator.
func TestWait(t *testing.T) {
	node, err := qs.Open("tcp://", qs.Config{})
	require.NoError(t, err)
	defer func() { require.NoError(t, node.Close()) }()
	ch := make(chan int)
	go func() { ch <- 7; close(ch) }()
	for _, want := range []int{7, 0} {
		got, err := qstest.Wait(t.Context(), node, ch)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	why := errors.New("enough")
	ctx, stop := context.WithCancelCause(context.Background())
	stop(why)
	_, err = qstest.Wait(ctx, node, make(chan int))
	require.ErrorIs(t, err, why)
}

// TestWaitInTheSimulator checks that a coroutine waits for a value from a handler of another node,
// and for its own deadline, in virtual time.
func TestWaitInTheSimulator(t *testing.T) {
	w := sim.NewWorld(sim.Config{Seed: 7})
	defer w.Close()
	cfg := qs.Config{HG: hg.Config{NA: hg.NetConfig{Plugins: []hg.Plugin{w.Plugin()}}}}
	ctx, stop := context.WithCancel(context.Background())
	greeted := make(chan string, 1)
	w.Go("server", func() {
		node, err := qs.Open("sim://server", cfg)
		assert.NoError(t, err)
		Greet.Handle(node, func(_ context.Context, name string) (string, error) {
			greeted <- name
			return "hello, " + name, nil
		})
		assert.NoError(t, node.Serve(ctx))
	})
	w.Go("client", func() {
		defer stop()
		node, err := qs.Open("sim://", cfg)
		assert.NoError(t, err)
		defer node.Close()
		server, err := node.Peer(ctx, "sim://server")
		assert.NoError(t, err)
		node.HG().NA().Spawn(func() {
			assert.NoError(t, node.HG().Sleep(ctx, time.Minute))
			_, err := Greet.Call(ctx, server, "Ada")
			assert.NoError(t, err)
		})
		name, err := qstest.Wait(ctx, node, greeted)
		assert.NoError(t, err)
		assert.Equal(t, "Ada", name)
		assert.GreaterOrEqual(t, w.Now(), time.Minute)

		short, cancel := node.HG().NA().WithTimeout(ctx, time.Second)
		defer cancel()
		from := w.Now()
		_, err = qstest.Wait(short, node, greeted)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.InDelta(t, time.Second, w.Now()-from, float64(10*time.Millisecond))
	})
	require.NoError(t, w.Run(time.Hour))
}

// A recorder is a testing.TB that records failures, and ends its goroutine as a test does.
type recorder struct {
	testing.TB
	cleanups []func()
}

func (r *recorder) Helper()          {}
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

// TestRegisterFails checks that nothing is left when register ends the test.
func TestRegisterFails(t *testing.T) {
	r := &recorder{TB: t}
	var addr string
	ended := make(chan bool)
	go func() {
		defer close(ended)
		qstest.Serve(r, func(node *qs.Node) {
			addr = node.Addr().String()
			runtime.Goexit() // as Fatal does
		})
	}()
	<-ended
	for _, f := range slices.Backward(r.cleanups) {
		f()
	}
	node, err := qs.Open(addr, qs.Config{}) // the port is free again
	require.NoError(t, err)
	require.NoError(t, node.Close())
}
