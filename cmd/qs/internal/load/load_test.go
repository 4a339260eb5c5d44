package load

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestRunCounts checks that the report has the counts of the nodes, for any loop, number of
// connections and end of the run.
func TestRunCounts(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*Config){
		"closed, count":           func(c *Config) { c.Count = 1000 },
		"closed, duration":        func(c *Config) { c.Duration = 200 * time.Millisecond },
		"closed, both":            func(c *Config) { c.Count, c.Duration = 500, patience },
		"closed, warm-up":         func(c *Config) { c.Count, c.Warmup = 500, 100*time.Millisecond },
		"closed, 3 connections":   func(c *Config) { c.Count, c.Connections = 1000, 3 },
		"open, count":             func(c *Config) { c.Count, c.Rate = 1001, 10_000 },
		"open, both":              func(c *Config) { c.Count, c.Duration, c.Rate = 501, patience, 10_000 },
		"open, duration":          func(c *Config) { c.Duration, c.Rate = 200*time.Millisecond, 5000 },
		"open, warm-up":           func(c *Config) { c.Duration, c.Rate, c.Warmup = 200*time.Millisecond, 5000, 50*time.Millisecond },
		"open, 3 connections":     func(c *Config) { c.Count, c.Rate, c.Connections = 1001, 10_000, 3 },
		"open, too few in flight": func(c *Config) { c.Duration, c.Rate, c.Concurrency = 200*time.Millisecond, 5e6, 2 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			one, two := newTarget(t, nil), newTarget(t, nil)
			cfg := newConfig(t, one, two)
			set(&cfg)
			cfg.Concurrency = max(cfg.Concurrency, 2*cfg.Connections)
			res, err := Run(boundedContext(t), cfg)
			require.NoError(t, err)
			require.Equal(t, one.ledger.Load()+two.ledger.Load(), res.Calls+res.WarmupCalls)
			require.Equal(t, res.Calls, res.Succeeded)
			require.Zero(t, res.Failed+res.Canceled)
			require.Equal(t, res.Calls, res.Latency.Calls)
			require.Equal(t, res.Calls, res.ByNode[0].Succeeded+res.ByNode[1].Succeeded)
			require.Equal(t, one.addr(), res.ByNode[0].Address)
			require.Equal(t, cfg.Warmup > 0, res.WarmupCalls > 0)
			require.False(t, res.Interrupted)
			if cfg.Count > 0 {
				require.Equal(t, cfg.Count, res.Calls)
				require.Less(t, res.Seconds, patience.Seconds(), "the time that the run took")
				require.InDelta(t, float64(res.Succeeded-res.Late), res.CallsPerS*res.Seconds, 0.5)
				if cfg.Rate > 0 {
					require.GreaterOrEqual(t, res.Seconds, float64(cfg.Count)/cfg.Rate)
				}
			} else {
				require.Equal(t, cfg.Duration.Seconds(), res.Seconds)
			}
			if cfg.Rate > 0 {
				due := cfg.Count
				if due == 0 {
					due = int64(cfg.Rate * cfg.Duration.Seconds())
				}
				require.Equal(t, due, res.Calls+res.Unsent)
				require.Equal(t, res.Calls, res.Service.Calls)
			}
			inSlices := int64(0)
			for _, s := range res.Slices {
				inSlices += s.Calls
			}
			require.InDelta(t, res.CallsPerS*res.Seconds, float64(inSlices), 0.5)
			require.LessOrEqual(t, len(res.Slices), maxSlices)
		})
	}
}

// TestRunLargeInputs checks that the run ends although the last call ends behind step in the queue
// of Trigger, as large calls often do.
func TestRunLargeInputs(t *testing.T) {
	t.Parallel()
	cfg := newConfig(t, newTarget(t, nil))
	cfg.Count, cfg.Concurrency, cfg.Inputs = 30, 30, [][]byte{encode(t, strings.Repeat("x", 500_000))}
	for range 4 {
		res, err := Run(boundedContext(t), cfg)
		require.NoError(t, err)
		require.Equal(t, int64(30), res.Succeeded)
		require.False(t, res.Interrupted)
	}
}

// TestRunLateAtTheEnd checks that a worker of an open loop that wakes after the end makes the calls
// that were due before: only calls for which no worker was idle are not sent.
func TestRunLateAtTheEnd(t *testing.T) {
	t.Parallel()
	for inFlight, want := range map[int]int64{200: 100, 30: 30} {
		cfg := newConfig(t, newTarget(t, nil))
		cfg.Rate, cfg.Duration, cfg.Concurrency = 1000, 100*time.Millisecond, inFlight
		r := &run{cfg: cfg, lanes: 1, cancel: func(error) {}}
		id, err := r.registerMethod()
		require.NoError(t, err)
		w, err := newWorker(boundedContext(t), r, 0, id)
		require.NoError(t, err)
		defer w.close()
		w.start()
		w.started -= time.Second
		require.NoError(t, w.drive(boundedContext(t)))
		require.Equal(t, want, w.lanes[0].sent)
		res := r.newResult([]*worker{w})
		require.Equal(t, want, res.Succeeded)
		require.Equal(t, 100-want, res.Unsent)
	}
}

// TestRunTakesTurns checks that both nodes get their turn of an open loop, and inputs are used in
// turn.
func TestRunTakesTurns(t *testing.T) {
	t.Parallel()
	one, two := newTarget(t, nil), newTarget(t, nil)
	cfg := newConfig(t, one, two)
	cfg.Count, cfg.Rate, cfg.Inputs = 100, 10_000, [][]byte{encode(t, "a"), encode(t, "bbb")}
	res, err := Run(boundedContext(t), cfg)
	require.NoError(t, err)
	require.Equal(t, []NodeResult{{one.addr(), 50, 0}, {two.addr(), 50, 0}}, res.ByNode)
	require.Equal(t, 3, res.InputBytes, "2 and 4 bytes")
}

// TestRunFailures checks the report of a node that refuses half of the calls, fails some after they
// ran, and lets others time out.
func TestRunFailures(t *testing.T) {
	t.Parallel()
	s := newTarget(t, func(ctx context.Context, n int64) error {
		switch {
		case n%2 == 0:
			return qs.Refuse(qs.Errorf(qs.ErrExhausted, "the quota is used up"))
		case n%5 == 0:
			return qs.Errorf(qs.ErrNotFound, "no such item")
		case n == 1:
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	cfg := newConfig(t, s)
	cfg.Count, cfg.Timeout = 1000, time.Second
	res, err := Run(boundedContext(t), cfg)
	require.NoError(t, err)
	require.Equal(t, int64(1000), s.ledger.Load())
	require.Equal(t, int64(1000), res.Calls)
	require.Equal(t, int64(399), res.Succeeded)
	require.Equal(t, int64(601), res.Failures.Calls)
	require.Len(t, res.Errors, 3)
	for i, want := range []Failure{
		{500, uint8(qs.ErrExhausted), "exhausted", "did_not_run", true, "the quota is used up"},
		{100, uint8(qs.ErrNotFound), "not found", "ran", true, "no such item"},
		{1, uint8(hg.ErrTimeout), "deadline exceeded", "may_have_run", false, ""},
	} {
		got := res.Errors[i]
		if want.Count == 1 { // the node may have reported it sooner than this side
			got.Fate, got.Answered = want.Fate, want.Answered
		} else {
			require.Contains(t, got.Example, want.Example)
		}
		got.Example = want.Example
		require.Equal(t, want, got)
	}
}

// TestRunNodeDies checks a node that exits during the run: its calls are counted apart from those
// that could not be sent, and the run ends.
func TestRunNodeDies(t *testing.T) {
	t.Parallel()
	for name, rate := range map[string]float64{"closed": 0, "open": 5000} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dying, held := make(chan struct{}), make(chan struct{})
			s := newTarget(t, func(_ context.Context, n int64) error {
				if n == 500 {
					close(dying)
				}
				if n >= 500 {
					<-held
				}
				return nil
			})
			t.Cleanup(func() { close(held) })
			go func() {
				<-dying
				_ = s.node.Close()
			}()
			cfg := newConfig(t, s)
			cfg.Duration, cfg.GiveUp, cfg.Rate = patience, 300*time.Millisecond, rate
			res, err := Run(boundedContext(t), cfg)
			require.ErrorIs(t, err, ErrNoAnswer)
			require.False(t, res.Interrupted)
			require.Positive(t, res.Succeeded)
			require.LessOrEqual(t, res.Succeeded, int64(499))
			fates := map[string]int64{}
			for _, f := range res.Errors {
				fates[f.Fate] += f.Count
			}
			require.Positive(t, fates["did_not_run"])
			require.LessOrEqual(t, s.ledger.Load()-res.Succeeded, fates["may_have_run"]+fates["ran"]+res.Canceled)
			require.Less(t, res.Seconds, patience.Seconds())
			if rate == 0 {
				require.Less(t, res.Failed, int64(1000), "a closed loop does not spin on a node that is not there")
			}
		})
	}
}

func TestRunUnknownMethod(t *testing.T) {
	t.Parallel()
	cfg := newConfig(t, newTarget(t, nil))
	cfg.Method, cfg.Duration = "wrok", patience
	res, err := Run(boundedContext(t), cfg)
	require.ErrorIs(t, err, ErrRefused)
	remote, ok := hg.RemoteOf(err)
	require.True(t, ok)
	require.Equal(t, hg.Code(hg.ErrNoMethod), remote.Code)
	require.Zero(t, res.Succeeded)
}

func TestRunUnreachable(t *testing.T) {
	t.Parallel()
	s := newTarget(t, nil)
	cfg := newConfig(t, s, &target{node: s.node})
	cfg.Nodes[1], cfg.Count = "tcp://127.0.0.1:1", 1
	res, err := Run(boundedContext(t), cfg)
	failed, ok := errors.AsType[*ConnectError](err)
	require.True(t, ok)
	require.Equal(t, "tcp://127.0.0.1:1", failed.Node.String())
	require.ErrorIs(t, err, hg.ErrUnreachable)
	require.Zero(t, res.Calls)
	require.Zero(t, s.ledger.Load(), "nothing was sent")
}

// TestRunInterrupted checks that an interrupt ends the run at once, also when a node holds calls,
// and that the measured results are reported.
func TestRunInterrupted(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(boundedContext(t))
	s := newTarget(t, func(ctx context.Context, n int64) error {
		if n > 100 {
			if n == 108 {
				stop()
			}
			<-ctx.Done()
		}
		return nil
	})
	cfg := newConfig(t, s)
	cfg.Duration = time.Hour
	res, err := Run(ctx, cfg)
	require.NoError(t, err)
	require.True(t, res.Interrupted)
	require.Equal(t, int64(100), res.Succeeded)
	require.Equal(t, int64(8), res.Canceled)
	require.Zero(t, res.Failed)
	require.Less(t, res.Seconds, patience.Seconds())
	require.Equal(t, int64(108), s.ledger.Load())
}

func TestRunOneWay(t *testing.T) {
	t.Parallel()
	s := newTarget(t, nil)
	got := make(chan string, 10)
	qs.DefineOneWay[string]("note").Handle(s.node, func(_ context.Context, in string) { got <- in })
	cfg := newConfig(t, s)
	cfg.Method, cfg.OneWay, cfg.Count = "note", true, 10
	res, err := Run(boundedContext(t), cfg)
	require.NoError(t, err)
	require.Equal(t, int64(10), res.Succeeded)
	for range 10 {
		require.Equal(t, "hello", <-got)
	}
}

func TestRunProgress(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(boundedContext(t))
	cfg := newConfig(t, newTarget(t, nil))
	cfg.Duration = patience
	var seen []Snapshot
	cfg.Progress = func(s Snapshot) {
		if seen = append(seen, s); len(seen) == 2 {
			stop()
		}
	}
	res, err := Run(ctx, cfg)
	require.NoError(t, err)
	require.Positive(t, seen[0].Calls)
	require.Greater(t, seen[1].Elapsed, seen[0].Elapsed)
	require.GreaterOrEqual(t, seen[1].Calls, seen[0].Calls)
	require.LessOrEqual(t, seen[1].Calls, res.Calls)
	require.LessOrEqual(t, len(seen[1].Line(seen[0], 0)), 90)
}
