package qs_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// runRetry runs a client against two servers, "one" and "two", in a simulated world.
func runRetry(t *testing.T, seed uint64, policy qs.RetryPolicy, register func(w *sim.World, name string, n *qs.Node), client func(ctx context.Context, w *sim.World, n *qs.Node, to qs.Peer)) {
	t.Helper()
	runRetryWith(t, seed, policy, 1, register, client)
}

// runRetryWith is world whose servers run a given number of handlers for the client at once.
func runRetryWith(t *testing.T, seed uint64, policy qs.RetryPolicy, perPeer int, register func(w *sim.World, name string, n *qs.Node), client func(ctx context.Context, w *sim.World, n *qs.Node, to qs.Peer)) {
	t.Helper()
	w := sim.NewWorld(sim.Config{Seed: seed})
	defer w.Close()
	serving, stop := context.WithCancel(context.Background())
	for _, name := range []string{"one", "two"} {
		w.Go(name, func() {
			cfg := qs.Config{ShutdownTimeout: -1, HG: hg.Config{MaxActivePerPeer: perPeer}}
			n := simulated(t, w, "sim://"+name, cfg)
			register(w, name, n)
			_ = n.Serve(serving)
		})
	}
	w.Go("client", func() {
		defer stop()
		w.Sleep(time.Millisecond)
		n := simulated(t, w, "sim://", qs.Config{ClientInterceptors: []qs.Interceptor{qs.Retry(policy)}})
		defer n.Close()
		ctx, cancel := n.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		client(ctx, w, n, newPeer(ctx, t, n))
	})
	require.NoError(t, w.Run(2*time.Hour))
}

// newPeer returns the Peer of world, without the state of another one.
func newPeer(ctx context.Context, t *testing.T, n *qs.Node) qs.Peer {
	t.Helper()
	to, err := n.Peer(ctx, "sim://one", "sim://two")
	require.NoError(t, err)
	return to
}

var (
	once   = qs.Define[string, string]("test/once")
	repeat = qs.Define[string, string]("test/repeat", qs.Idempotent())
)

const tooMany = qs.Code(200)

// TestRetryByFate checks that a call that did not run is repeated, one that may have run only if it
// is idempotent, one that ran never.
func TestRetryByFate(t *testing.T) {
	t.Parallel()
	calls := map[string]int{}
	register := func(w *sim.World, name string, n *qs.Node) {
		serve := func(_ context.Context, how string) (string, error) {
			calls[how]++
			switch {
			case how == "crash" && name == "one":
				w.Node("one").Crash()
				w.Sleep(time.Second) // it ends here
			case how == "refuse" && calls[how] < 3:
				return "", qs.Refuse(qs.Errorf(qs.ErrExhausted, "not now"))
			case how == "fail":
				return "", qs.Errorf(qs.ErrInternal, "it ran")
			case how == "bad":
				return "", qs.Refuse(qs.Errorf(qs.ErrBadInput, "never"))
			case how == "mine":
				return "", qs.Refuse(qs.Errorf(tooMany, "your quota is used up"))
			case how == "no code" && calls[how] < 3:
				return "", qs.Refuse(errors.New("not now"))
			}
			return name, nil
		}
		once.Handle(n, serve)
		repeat.Handle(n, serve)
	}
	runRetry(t, 1, qs.RetryPolicy{}, register, func(ctx context.Context, w *sim.World, n *qs.Node, to qs.Peer) {
		got, err := once.Call(ctx, to, "refuse")
		require.NoError(t, err)
		require.Equal(t, "one", got)
		require.Equal(t, 3, calls["refuse"])
		_, err = once.Call(ctx, to, "no code")
		require.NoError(t, err)
		for how, code := range map[string]qs.Code{"fail": qs.ErrInternal, "bad": qs.ErrBadInput, "mine": tooMany} {
			_, err = repeat.Call(ctx, to, how)
			require.ErrorIs(t, err, code)
			require.Equal(t, 1, calls[how], how)
		}
		got, err = repeat.Call(ctx, to, "crash")
		require.NoError(t, err)
		require.Equal(t, "two", got)
		require.Equal(t, 2, calls["crash"])
		require.Equal(t, "sim://two", to.Addr().String(), "an address that has failed is not tried")
		for range 100 {
			w.Sleep(time.Second)
			begun := w.Now()
			got, err = once.Call(ctx, to, "here?")
			require.NoError(t, err)
			require.Equal(t, "two", got, "a probe requests it, no call does")
			require.Less(t, w.Now()-begun, 10*time.Millisecond)
		}
	})
	runRetry(t, 2, qs.RetryPolicy{}, register, func(ctx context.Context, w *sim.World, n *qs.Node, to qs.Peer) {
		calls["crash"] = 0
		_, err := once.Call(ctx, to, "crash")
		require.ErrorIs(t, err, qs.ErrPeerLost)
		require.Equal(t, qs.MaybeRan, qs.FateOf(err))
		require.Equal(t, 1, calls["crash"])
	})
}

// TestStall checks that an attempt without an answer is given up, and repeated elsewhere. A request
// that the target gives back has not run, so it is repeated although the method is not idempotent.
func TestStall(t *testing.T) {
	t.Parallel()
	ran := map[string]int{}
	register := func(w *sim.World, name string, n *qs.Node) {
		serve := func(ctx context.Context, how string) (string, error) {
			if ran[how]++; name == "one" {
				_ = n.Sleep(context.Background(), time.Minute) // deaf
			}
			return name, nil
		}
		once.Handle(n, serve)
		repeat.Handle(n, serve)
	}
	runRetry(t, 1, qs.RetryPolicy{ProgressTimeout: time.Second, WithdrawTimeout: time.Second}, register, func(ctx context.Context, w *sim.World, n *qs.Node, to qs.Peer) {
		begun := w.Now()
		got, err := repeat.Call(ctx, to, "a")
		require.NoError(t, err)
		require.Equal(t, "two", got)
		require.Equal(t, 2, ran["a"])
		require.InDelta(t, time.Second, w.Now()-begun, float64(100*time.Millisecond))
		w.Sleep(2 * time.Second)
		got, err = once.Call(ctx, newPeer(ctx, t, n), "b") // the handler of "a" keeps the only place of this peer
		require.NoError(t, err)
		require.Equal(t, "two", got)
		require.Equal(t, 1, ran["b"], "the request at one was given back")
		w.Sleep(2 * time.Minute)
		_, err = once.Call(ctx, newPeer(ctx, t, n), "c")
		require.ErrorIs(t, err, qs.ErrTimeout)
		require.Equal(t, qs.MaybeRan, qs.FateOf(err))
		require.Equal(t, 1, ran["c"])
	})
}

var stallItems = qs.DefineStream[time.Duration, int]("test/stall/items")

// TestStallRacesAnswer checks that a call that is given up at about the time of its answer
// succeeds with all of its items, or has timed out. The fault appeared in one of 50,000 calls:
// those are in the long run.
func TestStallRacesAnswer(t *testing.T) {
	t.Parallel()
	const stall = 2 * time.Millisecond
	s := server(t, qs.Config{}, func(n *qs.Node) {
		stallItems.Handle(n, func(_ context.Context, d time.Duration, send func(int) error) error {
			_ = send(0)
			_ = n.Sleep(context.Background(), d)
			for i := range 3 {
				_ = send(i + 1)
			}
			return nil
		})
	})
	to := peer(t, open(t, "tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{qs.Retry(qs.RetryPolicy{Attempts: 1, ProgressTimeout: stall})}}), s.Addr().String())
	ctx := testContext(t)
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for range long.Or(20, 4000) {
				items := 0
				var failed error
				for _, err := range stallItems.Call(ctx, to, stall*3/4+rand.N(stall/2)) {
					if failed = err; err == nil {
						items++
					}
				}
				if failed == nil {
					assert.Equal(t, 4, items)
				} else {
					assert.ErrorIs(t, failed, qs.ErrTimeout)
				}
			}
		})
	}
	all.Wait()
}

// TestStallIsOfBytes checks that a slow handler that moves bytes is not given up, however long its
// call takes. One that works and moves none cannot be distinguished from one that hangs: Stall has
// to be longer than that takes.
func TestStallIsOfBytes(t *testing.T) {
	t.Parallel()
	const pieces, size = 10, 10_000
	calls := 0
	register := func(w *sim.World, name string, n *qs.Node) {
		put.Handle(n, func(ctx context.Context, in putIn) ([]byte, error) {
			calls++
			for i := range int64(pieces) {
				if _, err := in.Body.ReadAt(make([]byte, size), i*size); err != nil {
					return nil, err
				}
				_ = n.Sleep(ctx, 900*time.Millisecond)
			}
			if in.How == "thinks" {
				_ = n.Sleep(ctx, 2*time.Second)
			}
			return nil, nil
		})
	}
	for stall, gives := range map[time.Duration]map[string]error{
		time.Second:     {"moves": nil, "thinks": qs.ErrTimeout},
		4 * time.Second: {"moves": nil, "thinks": nil},
	} {
		runRetry(t, 1, qs.RetryPolicy{ProgressTimeout: stall}, register, func(ctx context.Context, w *sim.World, n *qs.Node, to qs.Peer) {
			for name, want := range gives {
				calls = 0
				_, err := put.Call(ctx, to, putIn{name, qs.Bytes(make([]byte, pieces*size))})
				require.Equal(t, 1, calls, "%s at %v", name, stall)
				if want == nil {
					require.NoError(t, err, "%s at %v", name, stall)
					continue
				}
				require.ErrorIs(t, err, want)
				require.ErrorContains(t, err, "no response and no data for 1s (RetryPolicy.ProgressTimeout)")
				require.Equal(t, qs.MaybeRan, qs.FateOf(err))
			}
		})
	}
}

// TestRetryBudget checks that an outage does not multiply the load without bound.
func TestRetryBudget(t *testing.T) {
	t.Parallel()
	attempts := 0
	count := func(ctx context.Context, c *qs.Call, next func(context.Context) error) error {
		attempts++
		return &hg.Error{Op: "forward", Fate: qs.NotRun, Err: qs.ErrUnreachable}
	}
	w := sim.NewWorld(sim.Config{Seed: 1})
	w.Go("client", func() {
		n := simulated(t, w, "sim://", qs.Config{ClientInterceptors: []qs.Interceptor{qs.Retry(qs.RetryPolicy{Backoff: -1}), count}})
		defer n.Close()
		to, err := n.Peer(context.Background(), "sim://nobody")
		require.NoError(t, err)
		for range 100 {
			_, err := once.Call(context.Background(), to, "x")
			require.ErrorIs(t, err, qs.ErrUnreachable)
		}
	})
	require.NoError(t, w.Run(time.Hour))
	require.Equal(t, 100+10+10, attempts, "10, and a tenth of the first attempts, are repeated")
}

// TestRetryPauses checks that the pauses in an outage of all addresses are those of a single one.
func TestRetryPauses(t *testing.T) {
	t.Parallel()
	for _, addrs := range [][]string{{"sim://a"}, {"sim://a", "sim://b"}, {"sim://a", "sim://b", "sim://c"}} {
		w := sim.NewWorld(sim.Config{Seed: 1})
		var at []time.Duration
		look := func(ctx context.Context, c *qs.Call, next func(context.Context) error) error {
			at = append(at, w.Now())
			return next(ctx)
		}
		w.Go("client", func() {
			n := simulated(t, w, "sim://", qs.Config{ClientInterceptors: []qs.Interceptor{qs.Retry(qs.RetryPolicy{Attempts: 3 + len(addrs)}), look}})
			defer n.Close()
			to, err := n.Peer(context.Background(), addrs...)
			require.NoError(t, err)
			_, err = once.Call(context.Background(), to, "x")
			require.ErrorIs(t, err, qs.ErrUnreachable)
		})
		require.NoError(t, w.Run(time.Hour))
		require.Len(t, at, 3+len(addrs))
		require.Less(t, at[len(addrs)-1], time.Millisecond, "there is no pause before another address")
		for i := len(addrs); i < len(at); i++ {
			require.GreaterOrEqual(t, at[i]-at[i-1], 10*time.Millisecond<<(i-len(addrs)), "%v: %v", addrs, at)
		}
	}
}

// TestFuture checks the three ways to withdraw a call in flight.
func TestFuture(t *testing.T) {
	t.Parallel()
	ended := map[string]error{}
	register := func(w *sim.World, name string, n *qs.Node) {
		once.Handle(n, func(ctx context.Context, how string) (string, error) {
			ended[how] = n.Sleep(ctx, time.Minute)
			return how, nil
		})
	}
	runRetry(t, 1, qs.RetryPolicy{}, register, func(ctx context.Context, w *sim.World, n *qs.Node, to qs.Peer) {
		first := once.Go(ctx, to, "first")
		w.Sleep(time.Millisecond)
		short, cancel := n.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := first.Wait(short)
		require.ErrorIs(t, err, context.DeadlineExceeded, "the wait ends, the call does not")
		second := once.Go(ctx, to, "second") // it waits: one handler at a time
		w.Sleep(time.Millisecond)
		require.Equal(t, hg.Withdrawn, second.Withdraw(ctx))
		_, err = second.Wait(ctx)
		require.ErrorIs(t, err, qs.ErrCanceled)
		require.Equal(t, qs.NotRun, qs.FateOf(err))
		require.Equal(t, hg.TooLate, first.Withdraw(ctx))
		got, err := first.Wait(ctx)
		require.NoError(t, err)
		require.Equal(t, "first", got)
		require.Equal(t, hg.TooLate, first.Withdraw(ctx))

		third := once.Go(ctx, to, "third")
		w.Sleep(time.Second)
		third.Abandon()
		_, err = third.Wait(ctx)
		require.ErrorIs(t, err, qs.ErrCanceled)
		fourth := once.Go(ctx, to, "fourth")
		w.Sleep(time.Second)
		fourth.Cancel()
		_, err = fourth.Wait(ctx)
		require.ErrorIs(t, err, qs.ErrCanceled)
		w.Sleep(2 * time.Minute)
		require.NotContains(t, ended, "second")
		require.Error(t, ended["third"], "the target was notified")
		require.NoError(t, ended["fourth"], "the target did not")
	})
}

// TestInterceptors checks that the first is the outermost, on both sides; those after Retry run for
// each attempt. Metadata travels both ways.
func TestInterceptors(t *testing.T) {
	t.Parallel()
	var events []string
	say := func(what string) qs.Interceptor {
		return func(ctx context.Context, c *qs.Call, next func(context.Context) error) error {
			events = append(events, what)
			err := next(ctx)
			events = append(events, "/"+what)
			return err
		}
	}
	var log bytes.Buffer
	w := sim.NewWorld(sim.Config{Seed: 1})
	serving, stop := context.WithCancel(context.Background())
	w.Go("one", func() {
		n := simulated(t, w, "sim://one", qs.Config{ServerInterceptors: []qs.Interceptor{say("s1"), func(ctx context.Context, c *qs.Call, next func(context.Context) error) error {
			if *c.In.(*string) == "no" {
				return qs.Errorf(qs.ErrDenied, "by an interceptor")
			}
			who, _ := c.Metadata.Get("who")
			err := next(context.WithValue(ctx, key{}, who))
			*c.Out.(*string) += "!"
			return err
		}}})
		once.Handle(n, func(ctx context.Context, s string) (string, error) {
			events = append(events, "handler")
			c := qs.CallFrom(ctx)
			c.ResponseMetadata, _ = c.ResponseMetadata.With("took", "long")
			return fmt.Sprint(s, " from ", ctx.Value(key{})), nil
		})
		_ = n.Serve(serving)
	})
	w.Go("client", func() {
		defer stop()
		w.Sleep(time.Millisecond)
		var answer string
		failed := false
		n := simulated(t, w, "sim://", qs.Config{ClientInterceptors: []qs.Interceptor{
			qs.LogCalls(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))),
			say("c1"), qs.Retry(qs.RetryPolicy{}), say("c2"),
			func(ctx context.Context, c *qs.Call, next func(context.Context) error) (err error) {
				if c.Metadata, err = c.Metadata.With("who", "Ada"); err != nil {
					return err
				}
				if !failed {
					failed = true
					return &hg.Error{Op: "forward", Fate: qs.NotRun, Err: qs.ErrUnreachable}
				}
				err = next(ctx)
				answer, _ = c.ResponseMetadata.Get("took")
				return err
			},
		}})
		defer n.Close()
		to, err := n.Peer(context.Background(), "sim://one")
		require.NoError(t, err)
		got, err := once.Call(context.Background(), to, "hello")
		require.NoError(t, err)
		require.Equal(t, "hello from Ada!", got)
		require.Equal(t, "long", answer)
		require.Equal(t, "c1 c2 /c2 c2 s1 handler /s1 /c2 /c1", strings.Join(events, " "))
		_, err = once.Call(context.Background(), to, "no")
		require.ErrorIs(t, err, qs.ErrDenied)
		require.Contains(t, log.String(), "level=DEBUG msg=call method=test/once peer=sim://one")
		require.Contains(t, log.String(), "attempt=2")
		require.Contains(t, log.String(), "level=INFO")
	})
	require.NoError(t, w.Run(time.Hour))
}

type key struct{}

// TestShutdown checks that a handler that runs may end, new calls are refused, and calls that do
// not end in time are named.
func TestShutdown(t *testing.T) {
	t.Parallel()
	for _, grace := range []time.Duration{time.Minute, time.Second} {
		w := sim.NewWorld(sim.Config{Seed: 1})
		serving, stop := context.WithCancel(context.Background())
		var served error
		w.Go("one", func() {
			n := simulated(t, w, "sim://one", qs.Config{ShutdownTimeout: grace})
			once.Handle(n, func(ctx context.Context, s string) (string, error) {
				_ = n.Sleep(ctx, 10*time.Second)
				return s, ctx.Err()
			})
			served = n.Serve(serving)
		})
		w.Go("client", func() {
			w.Sleep(time.Millisecond)
			n := simulated(t, w, "sim://", qs.Config{})
			defer n.Close()
			ctx, cancel := n.WithTimeout(context.Background(), time.Hour)
			defer cancel()
			to, err := n.Peer(ctx, "sim://one")
			require.NoError(t, err)
			f := once.Go(ctx, to, "x")
			w.Sleep(100 * time.Millisecond)
			stop()
			w.Sleep(100 * time.Millisecond)
			_, err = once.Call(ctx, to, "y")
			require.ErrorIs(t, err, qs.ErrRefused)
			require.Equal(t, qs.NotRun, qs.FateOf(err))
			_, err = f.Wait(ctx)
			if grace == time.Minute {
				require.NoError(t, err)
			} else {
				require.Error(t, err)
			}
		})
		require.NoError(t, w.Run(time.Hour))
		if grace == time.Minute {
			require.NoError(t, served)
		} else {
			var left *hg.ShutdownError
			require.ErrorAs(t, served, &left)
			require.Equal(t, 1, left.Handlers)
			require.Equal(t, []string{"handler of test/once was cut off"}, left.Open, "it has returned since")
		}
	}
}

func TestBadConfig(t *testing.T) {
	t.Parallel()
	for what, open := range map[string]func() (*qs.Node, error){
		"MaxInput is -1": func() (*qs.Node, error) { return qs.Open("tcp://", qs.Config{MaxInput: -1}) },
		`HG.NA.Name is "b": set one of them`: func() (*qs.Node, error) {
			return qs.Open("tcp://", qs.Config{Name: "a", HG: hg.Config{NA: hg.NetConfig{Name: "b"}}})
		},
		"HG.MaxInput is 2: set one of them": func() (*qs.Node, error) {
			return qs.Open("tcp://", qs.Config{MaxInput: 1, HG: hg.Config{MaxInput: 2}})
		},
		"MaxConcurrent": func() (*qs.Node, error) { return qs.Open("tcp://", qs.Config{MaxConcurrent: -1}) },
		"Contexts":      func() (*qs.Node, error) { return qs.Open("sim://", qs.Config{Contexts: 2}) },
		"interceptor": func() (*qs.Node, error) {
			return qs.Open("tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{nil}})
		},
		"missing scheme": func() (*qs.Node, error) { return qs.Open("localhost:7000", qs.Config{}) },
		"Dispatch": func() (*qs.Node, error) {
			return qs.Open("tcp://", qs.Config{HG: hg.Config{Dispatch: func(hg.Request) {}}})
		},
	} {
		_, err := open()
		require.ErrorIs(t, err, qs.ErrInvalid, what)
		require.ErrorContains(t, err, what)
	}
	for addr, code := range map[string]qs.Code{"nobody://x": hg.ErrUnsupported, "udp://0.0.0.0:0": qs.ErrPermission} {
		_, err := qs.Open(addr, qs.Config{})
		require.ErrorIs(t, err, code)
	}
	_, err := qs.Open("sm://x", qs.Config{TLS: &tls.Config{}})
	require.ErrorIs(t, err, qs.ErrInvalid)
	require.ErrorContains(t, err, `TLS is for tcp:// and udp://, not "sm://x": messages are in memory that only processes of one user can open`)
	n := open(t, "tcp://", qs.Config{})
	_, err = n.Peer(testContext(t))
	require.ErrorIs(t, err, qs.ErrInvalid)
	_, err = n.Peer(testContext(t), "nonsense")
	require.Error(t, err)
	to := peer(t, n, "tcp://127.0.0.1:1")
	require.NoError(t, n.Close())
	require.NoError(t, n.Close())
	_, err = once.Call(testContext(t), to, "x")
	require.ErrorIs(t, err, qs.ErrClosed)
	require.Equal(t, qs.NotRun, qs.FateOf(err))
}

// TestRetryErrorNamesReason checks that the error of a call that is not repeated any more has the
// number of attempts, and the reason against more.
func TestRetryErrorNamesReason(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		policy qs.RetryPolicy
		says   string
	}{
		{qs.RetryPolicy{Backoff: -1}, "(did not run, after 3 of 3 attempts in "},
		{qs.RetryPolicy{Backoff: -1, Attempts: 20}, ", the retry budget is exhausted: see RetryPolicy.BudgetRatio)"},
	} {
		n := open(t, "tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{qs.Retry(c.policy)}})
		_, err := upper.Call(testContext(t), peer(t, n, "tcp://127.0.0.1:1"), "a")
		require.ErrorIs(t, err, qs.ErrUnreachable)
		require.ErrorContains(t, err, c.says)
		require.Equal(t, qs.NotRun, qs.FateOf(err))
	}
}

// TestRetryErrorHasOneFate checks that when the last attempt did not run and an earlier one may
// have, the error has one head and one fate, that of all.
func TestRetryErrorHasOneFate(t *testing.T) {
	t.Parallel()
	get := qs.Define[string, string]("test/fate-once", qs.Idempotent())
	begun := make(chan struct{})
	s := server(t, qs.Config{}, func(n *qs.Node) {
		get.Handle(n, func(ctx context.Context, _ string) (string, error) {
			close(begun)
			<-ctx.Done()
			return "", ctx.Err()
		})
	})
	var nowhere qs.Peer
	n := open(t, "tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{
		qs.Retry(qs.RetryPolicy{Backoff: -1}),
		func(ctx context.Context, c *qs.Call, next func(context.Context) error) error {
			if c.Attempt > 1 {
				c.Peer = nowhere
				return next(ctx)
			}
			ctx, giveUp := context.WithCancel(ctx) // once the handler runs
			go func() {
				<-begun
				giveUp()
			}()
			return next(ctx)
		},
	}})
	nowhere = peer(t, n, "tcp://127.0.0.1:1")
	_, err := get.Call(testContext(t), peer(t, n, s.Addr().String()), "a")
	require.ErrorIs(t, err, qs.ErrUnreachable)
	require.Equal(t, qs.MaybeRan, qs.FateOf(err))
	require.Equal(t, 1, strings.Count(err.Error(), "hg: forward"), err)
	require.Equal(t, 1, strings.Count(err.Error(), "run"), err)
	require.Regexp(t, `\(may have run in attempt 1, after 3 of 3 attempts in [0-9.]+.?s\)`, err.Error())
}

// TestRetryErrorHasTotalTime checks, in virtual time, that the error of the last attempt has the time
// since the call began, and not only that of the attempt.
func TestRetryErrorHasTotalTime(t *testing.T) {
	t.Parallel()
	w := sim.NewWorld(sim.Config{Seed: 7})
	defer w.Close()
	w.Go("client", func() {
		n := simulated(t, w, "sim://", qs.Config{ClientInterceptors: []qs.Interceptor{
			qs.Retry(qs.RetryPolicy{Backoff: -1}),
			func(ctx context.Context, _ *qs.Call, next func(context.Context) error) error {
				w.Sleep(time.Second)
				return next(ctx)
			},
		}})
		defer n.Close()
		to, err := n.Peer(t.Context(), "sim://one")
		require.NoError(t, err)
		start := w.Now()
		_, err = once.Call(t.Context(), to, "a")
		require.ErrorIs(t, err, qs.ErrUnreachable)
		total := w.Now() - start
		require.GreaterOrEqual(t, total, 3*time.Second)
		require.ErrorContains(t, err, fmt.Sprintf("(did not run, after 3 of 3 attempts in %v)", total.Round(10*time.Millisecond)))
	})
	require.NoError(t, w.Run(time.Hour))
}

// TestRetryUntilTheDeadline checks that without a limit of attempts a call waits for its server
// until its deadline, in virtual time.
func TestRetryUntilTheDeadline(t *testing.T) {
	t.Parallel()
	for _, comes := range []bool{true, false} {
		w := sim.NewWorld(sim.Config{Seed: 7})
		defer w.Close()
		serving, stop := context.WithCancel(context.Background())
		defer stop()
		w.Go("server", func() {
			if !comes {
				return
			}
			w.Sleep(50 * time.Second)
			n := simulated(t, w, "sim://one", qs.Config{})
			once.Handle(n, func(_ context.Context, s string) (string, error) { return s, nil })
			_ = n.Serve(serving)
		})
		w.Go("client", func() {
			defer stop()
			n := simulated(t, w, "sim://", qs.Config{ClientInterceptors: []qs.Interceptor{qs.Retry(qs.RetryPolicy{Attempts: -1, BudgetRatio: -1, Backoff: -1})}})
			defer n.Close()
			ctx, cancel := w.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			to, err := n.Peer(ctx, "sim://one")
			require.NoError(t, err)
			_, err = once.Call(ctx, to, "a")
			if comes {
				require.NoError(t, err)
				require.Less(t, w.Now(), 52*time.Second)
				return
			}
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, time.Minute, w.Now())
			require.Equal(t, qs.NotRun, qs.FateOf(err))
			require.Regexp(t, `^hg: forward \S+ to sim://one: deadline exceeded; no class listens on sim://one.* \(did not run, after \d{2,} attempts in 1m0s\)$`,
				err.Error(), "the attempts of the call, and why they failed")
		})
		require.NoError(t, w.Run(time.Hour))
	}
}

// TestRetryErrorNamesFirst checks, in virtual time, that the error of the last attempt of a call
// without a limit of attempts is followed by the error of the first, if that is another one.
func TestRetryErrorNamesFirst(t *testing.T) {
	t.Parallel()
	w := sim.NewWorld(sim.Config{Seed: 7})
	defer w.Close()
	serving, stop := context.WithCancel(context.Background())
	defer stop()
	w.Go("server", func() {
		runs := 0
		n := simulated(t, w, "sim://one", qs.Config{ShutdownTimeout: -1})
		once.Handle(n, func(context.Context, string) (string, error) {
			if runs++; runs == 1 {
				return "", qs.Refuse(qs.Errorf(qs.ErrNotReady, "loading the index"))
			}
			w.Sleep(time.Hour)
			return "", nil
		})
		_ = n.Serve(serving)
	})
	w.Go("client", func() {
		defer stop()
		w.Sleep(time.Millisecond)
		n := simulated(t, w, "sim://", qs.Config{ClientInterceptors: []qs.Interceptor{qs.Retry(qs.RetryPolicy{Attempts: -1, Backoff: -1})}})
		defer n.Close()
		ctx, cancel := w.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		to, err := n.Peer(ctx, "sim://one")
		require.NoError(t, err)
		_, err = once.Go(ctx, to, "a").Wait(context.Background())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, qs.ErrNotReady, "the first error is only text")
		require.Regexp(t, `^hg: forward \S+ to sim://one: deadline exceeded \(may have run, after 2 attempts in 1m0s\); first error: target: loading the index$`, err.Error())
	})
	require.NoError(t, w.Run(2*time.Hour))
}

// TestRetryCodesOfProgram checks that a code of the program decides whether a call is repeated,
// however it got there: by a handler, by a handler that refuses, or by an interceptor that puts it
// in front of another code.
func TestRetryCodesOfProgram(t *testing.T) {
	t.Parallel()
	own := qs.Code(200)
	var runs atomic.Int32
	method := qs.Define[string, int]("test/codes-of-program", qs.Idempotent())
	s := server(t, qs.Config{}, func(n *qs.Node) {
		method.Handle(n, func(_ context.Context, how string) (int, error) {
			runs.Add(1)
			switch how {
			case "handler":
				return 0, qs.Errorf(own, "full")
			case "refusal":
				return 0, qs.Refuse(qs.Errorf(own, "full"))
			}
			return 0, qs.Refuse(qs.Errorf(qs.ErrExhausted, "full"))
		})
	})
	wrap := func(ctx context.Context, c *qs.Call, next func(context.Context) error) error {
		err := next(ctx)
		if errors.Is(err, qs.ErrExhausted) {
			return qs.Errorf(own, "overload: %w", err)
		}
		return err
	}
	for _, listed := range []bool{false, true} {
		policy, want := qs.RetryPolicy{Attempts: 3, Backoff: -1, BudgetRatio: -1}, int32(1)
		if listed {
			policy.Codes, want = []qs.Code{own}, 3
		}
		to := peer(t, open(t, "tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{qs.Retry(policy), wrap}}), s.Addr().String())
		for _, how := range []string{"handler", "refusal", "interceptor"} {
			runs.Store(0)
			_, err := method.Call(testContext(t), to, how)
			require.Equal(t, own, qs.CodeOf(err), how)
			require.Equal(t, want, runs.Load(), "%s, listed %v", how, listed)
		}
	}
}

// TestRetryErrorNamesAddresses checks that the error of a call at several addresses names them: all
// of them, three by name, if the attempts failed for the same reason, and that of the first error if
// it failed for another one.
func TestRetryErrorNamesAddresses(t *testing.T) {
	t.Parallel()
	n := open(t, "tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{qs.Retry(qs.RetryPolicy{Backoff: -1, Attempts: 5, BudgetRatio: -1})}})
	closed := func(count int) (addrs []string) { // nothing listens at these
		for i := range count {
			addrs = append(addrs, fmt.Sprintf("tcp://127.0.0.1:%d", i+1))
		}
		return addrs
	}
	const addr = `tcp://127\.0\.0\.1:\d`
	for count, says := range map[int]string{
		1: `\(did not run, after 5 of 5 attempts in \S+\)$`,
		2: `\(did not run, after 5 of 5 attempts in \S+\); tried ` + addr + ` and ` + addr + `$`,
		3: `\); tried ` + addr + `, ` + addr + ` and ` + addr + `$`,
		5: `\); tried ` + addr + `, ` + addr + `, ` + addr + ` and 2 more$`,
	} {
		_, err := upper.Call(testContext(t), peer(t, n, closed(count)...), "a")
		require.ErrorIs(t, err, qs.ErrUnreachable)
		require.Regexp(t, says, err.Error())
	}

	s := server(t, qs.Config{}, func(n *qs.Node) {
		upper.Handle(n, func(context.Context, string) (string, error) {
			return "", qs.Refuse(qs.Errorf(qs.ErrNotReady, "loading the index"))
		})
	})
	two := open(t, "tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{qs.Retry(qs.RetryPolicy{Backoff: -1, Attempts: 2})}})
	_, err := upper.Call(testContext(t), peer(t, two, s.Addr().String(), "tcp://127.0.0.1:1"), "a")
	require.ErrorIs(t, err, qs.ErrUnreachable)
	require.Regexp(t, `; first error, at `+regexp.QuoteMeta(s.Addr().String())+`: target: loading the index$`, err.Error())
}

// TestRetryErrorOfReader checks that the error of a Reader that fails in every attempt is in the
// text once, before one parenthesis.
func TestRetryErrorOfReader(t *testing.T) {
	t.Parallel()
	put := qs.Define[struct{ Body qs.Source }, int]("test/put-failing", qs.Idempotent())
	s := server(t, qs.Config{}, func(n *qs.Node) {
		put.Handle(n, func(ctx context.Context, in struct{ Body qs.Source }) (int, error) {
			if _, err := io.ReadAll(in.Body.Reader(ctx)); err != nil {
				return 0, qs.Errorf(qs.ErrUnavailable, "%w", err)
			}
			return 0, nil
		})
	})
	n := open(t, "tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{qs.Retry(qs.RetryPolicy{Backoff: -1})}})
	burning := errors.New("disk on fire")
	_, err := put.Call(testContext(t), peer(t, n, s.Addr().String()), struct{ Body qs.Source }{qs.Reader(iotest.ErrReader(burning))})
	require.ErrorIs(t, err, burning)
	require.ErrorIs(t, err, qs.ErrUnavailable)
	require.Equal(t, qs.Ran, qs.FateOf(err))
	require.Regexp(t, `^hg: forward \S+ to \S+: [^()]*disk on fire \(ran, after 3 of 3 attempts in \S+\)$`, err.Error())
}
