package qs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

type point struct{ X, Y int }

var (
	double = qs.Define[point, point]("test/double")
	upper  = qs.Define[string, string]("test/upper")
	fails  = qs.Define[string, struct{}]("test/fails")
	note   = qs.DefineOneWay[string]("test/note")
)

func TestCall(t *testing.T) {
	t.Parallel()
	heard := make(chan string, 1)
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		double.Handle(n, func(_ context.Context, p point) (point, error) { return point{2 * p.X, 2 * p.Y}, nil })
		upper.Handle(n, func(ctx context.Context, s string) (string, error) {
			who, ok := qs.Metadata(ctx, "who")
			if !ok {
				return strings.ToUpper(s), nil
			}
			return strings.ToUpper(s) + " for " + who, nil
		})
		fails.Handle(n, func(_ context.Context, s string) (struct{}, error) {
			return struct{}{}, qs.Errorf(qs.ErrNotFound, "no %s here", s)
		})
		note.Handle(n, func(_ context.Context, s string) { heard <- s })
	})
	ctx := testContext(t)
	got, err := double.Call(ctx, to, point{1, 21})
	require.NoError(t, err)
	require.Equal(t, point{2, 42}, got)
	s, err := upper.Call(qs.WithMetadata(ctx, "who", "Ada"), to, "hello")
	require.NoError(t, err)
	require.Equal(t, "HELLO for Ada", s)
	s, err = upper.Call(ctx, to, "hello")
	require.NoError(t, err)
	require.Equal(t, "HELLO", s)
	_, err = upper.Call(qs.WithMetadata(ctx, "Who", "Ada"), to, "hello")
	require.ErrorIs(t, err, qs.ErrInvalid)
	require.Equal(t, qs.NotRun, qs.FateOf(err))

	_, err = fails.Call(ctx, to, "cake")
	require.ErrorIs(t, err, qs.ErrNotFound)
	require.ErrorIs(t, err, hg.ErrRemote)
	require.ErrorContains(t, err, "no cake here")
	require.Equal(t, qs.Ran, qs.FateOf(err))

	require.NoError(t, note.Send(ctx, to, "psst"))
	select {
	case s := <-heard:
		require.Equal(t, "psst", s)
	case <-ctx.Done():
		t.Fatal("the one-way call did not arrive")
	}

	unknown := qs.Define[int, int]("test/unknown")
	_, err = unknown.Call(ctx, to, 1)
	remote, ok := hg.RemoteOf(err)
	require.True(t, ok)
	require.Equal(t, qs.ErrNoMethod, remote.Code)
	require.Equal(t, qs.NotRun, qs.FateOf(err))

	took, err := to.Ping(ctx)
	require.NoError(t, err)
	require.Positive(t, took)
	_, err = double.Call(ctx, qs.Peer{}, point{})
	require.ErrorIs(t, err, qs.ErrInvalid)
}

// TestCallInto checks that CallInto uses the memory of its caller: an answer that fits is decoded
// into that of the one before.
func TestCallInto(t *testing.T) {
	t.Parallel()
	several := qs.Define[int, []byte]("test/several")
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		several.Handle(n, func(_ context.Context, n int) ([]byte, error) { return bytes.Repeat([]byte{byte(n)}, n), nil })
	})
	var out []byte
	for _, n := range []int{200, 300_000, 100, 0, 300_000} {
		before := out
		require.NoError(t, several.CallInto(testContext(t), to, n, &out))
		require.True(t, bytes.Equal(bytes.Repeat([]byte{byte(n)}, n), out))
		if before != nil && cap(before) >= n {
			require.Same(t, &before[:1][0], &out[:1][0])
		}
	}
}

// TestBadInput checks that input that cannot be decoded is refused: the function did not start.
func TestBadInput(t *testing.T) {
	t.Parallel()
	other := qs.Define[string, int]("test/double")
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		double.Handle(n, func(_ context.Context, p point) (point, error) { panic("it ran") })
	})
	_, err := other.Call(testContext(t), to, "no point")
	require.ErrorIs(t, err, qs.ErrBadInput)
	require.ErrorIs(t, err, qs.ErrRefused)
	require.Equal(t, qs.NotRun, qs.FateOf(err))
}

// TestDeadlineTravels checks that the deadline of a call travels, and its end ends the handler's
// context; so does the end of the call.
func TestDeadlineTravels(t *testing.T) {
	t.Parallel()
	slow := qs.Define[bool, int]("test/slow")
	begun, ended, over := make(chan struct{}, 100), make(chan error, 100), make(chan struct{})
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		slow.Handle(n, func(ctx context.Context, deadline bool) (int, error) {
			begun <- struct{}{}
			at, ok := ctx.Deadline()
			if ok != deadline || ok && time.Until(at) > time.Minute {
				ended <- fmt.Errorf("deadline %v %v", at, ok)
				return 0, nil
			}
			below, stop := context.WithCancel(ctx)
			defer stop()
			<-below.Done()
			ended <- below.Err()
			if deadline {
				<-over // or the answer could arrive before the caller has looked at its clock
			}
			return 0, ctx.Err()
		})
	})
	var err error
	for ran := false; !ran; { // on a busy machine the deadline may pass before the handler begins
		ctx, stop := context.WithTimeout(context.Background(), 50*time.Millisecond)
		_, err = slow.Call(ctx, to, true)
		stop()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		select {
		case <-begun:
			ran = true
		default:
		}
	}
	close(over)
	require.ErrorIs(t, err, qs.ErrTimeout)
	require.NotErrorIs(t, err, context.Canceled)
	require.Contains(t, []error{context.DeadlineExceeded, context.Canceled}, <-ended, "its own clock or the origin's notice, whichever is first")

	why := errors.New("enough")
	canceled, cancel := context.WithCancelCause(context.Background())
	go func() {
		<-begun
		cancel(why)
	}()
	_, err = slow.Call(canceled, to, false)
	require.ErrorIs(t, err, qs.ErrCanceled)
	require.ErrorIs(t, err, why)
	require.Error(t, <-ended)
}

func TestPanicAndSilence(t *testing.T) {
	t.Parallel()
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		upper.Handle(n, func(context.Context, string) (string, error) { panic("a secret") })
	})
	_, err := upper.Call(testContext(t), to, "x")
	require.ErrorIs(t, err, hg.ErrPanic)
	require.NotContains(t, err.Error(), "secret")
}

func TestHandleTwice(t *testing.T) {
	t.Parallel()
	n := open(t, "tcp://127.0.0.1:0", qs.Config{})
	serve := func() { upper.Handle(n, func(_ context.Context, s string) (string, error) { return s, nil }) }
	serve()
	require.PanicsWithValue(t, "qs: method test/upper already has a handler", serve)
}

func TestDefinePanics(t *testing.T) {
	t.Parallel()
	for name, define := range map[string]func(){
		"in a slice":   func() { qs.Define[[]qs.Source, int]("x") },
		"in a pointer": func() { qs.Define[struct{ S *qs.Sink }, int]("x") },
		"in a map":     func() { qs.Define[map[string]qs.Sink, int]("x") },
		"unexported":   func() { qs.Define[struct{ s qs.Sink }, int]("x") },
		"in Out":       func() { qs.Define[int, struct{ S qs.Source }]("x") },
		"one-way":      func() { qs.DefineOneWay[struct{ S qs.Source }]("x") },
		"no name":      func() { qs.Define[int, int]("") },
		"long name":    func() { qs.Define[int, int](strings.Repeat("x", 256)) },
	} {
		require.Panics(t, define, name)
	}
	type tree struct {
		Kids []tree
		Up   *tree
	}
	require.NotPanics(t, func() { qs.Define[tree, tree]("x") })
	require.NotPanics(t, func() { qs.Define[struct{ A struct{ B qs.Source } }, int]("x") })
}

// TestWorkers checks that when there are more handlers than workers the rest waits; those that run
// at once may wait for one another.
func TestWorkers(t *testing.T) {
	t.Parallel()
	meet := qs.Define[int, int]("test/meet")
	const n = 40
	all, here := make(chan struct{}), make(chan struct{}, n)
	_, to := pair(t, qs.Config{}, func(node *qs.Node) {
		meet.Handle(node, func(ctx context.Context, i int) (int, error) {
			here <- struct{}{}
			if len(here) == n {
				close(all)
			}
			select {
			case <-all:
				return i, nil
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		})
	})
	ctx := testContext(t)
	var fs []*qs.Future[int]
	for i := range n {
		fs = append(fs, meet.Go(ctx, to, i))
	}
	for i, f := range fs {
		got, err := f.Wait(ctx)
		require.NoError(t, err)
		require.Equal(t, i, got)
	}
}

// TestSimulated checks that in two nodes of a simulated world typed calls, contexts and futures
// replay.
func TestSimulated(t *testing.T) {
	t.Parallel()
	run := func(seed uint64) uint64 {
		w := sim.NewWorld(sim.Config{Seed: seed, Faults: sim.Faults{Jitter: time.Millisecond}})
		stop := func() {}
		w.Go("server", func() {
			n := simulated(t, w, "sim://server", qs.Config{})
			upper.Handle(n, func(ctx context.Context, s string) (string, error) {
				return strings.ToUpper(s), n.Sleep(ctx, 10*time.Millisecond)
			})
			ctx, cancel := context.WithCancel(context.Background())
			stop = cancel
			require.NoError(t, n.Serve(ctx))
		})
		w.Go("client", func() {
			w.Sleep(time.Second)
			n := simulated(t, w, "sim://", qs.Config{})
			ctx, cancel := n.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			to, err := n.Peer(ctx, "sim://server")
			require.NoError(t, err)
			var fs []*qs.Future[string]
			for i := range 20 {
				fs = append(fs, upper.Go(ctx, to, fmt.Sprint("n", i)))
			}
			for i, f := range fs {
				s, err := f.Wait(ctx)
				require.NoError(t, err)
				require.Equal(t, fmt.Sprint("N", i), s)
			}
			short, cancelShort := n.WithTimeout(ctx, time.Millisecond)
			defer cancelShort()
			_, err = upper.Call(short, to, "late")
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NoError(t, n.Close())
			stop()
		})
		require.NoError(t, w.Run(time.Hour), "seed %d", seed)
		return w.Hash()
	}
	for seed := range uint64(5) {
		require.Equal(t, run(seed), run(seed), "seed %d does not replay", seed)
	}
}

// TestHandlerFailsWithSuccess checks that an error is an error, whatever its code.
func TestHandlerFailsWithSuccess(t *testing.T) {
	t.Parallel()
	for err, says := range map[error]string{
		qs.Code(0):                   "target: error of code 0: success",
		qs.Errorf(0, "disk on fire"): "target: error of code 0: disk on fire",
	} {
		_, to := pair(t, qs.Config{}, func(n *qs.Node) {
			double.Handle(n, func(context.Context, point) (point, error) { return point{}, err })
		})
		_, err := double.Call(testContext(t), to, point{})
		require.ErrorIs(t, err, hg.ErrHandler)
		require.ErrorContains(t, err, says)
		require.Equal(t, qs.Ran, qs.FateOf(err))
	}
}
