package qs_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// runAttempts runs a client with one interceptor in a simulated world, where the handler of repeat acts
// on its input for each attempt: "x" runs and ends its process, "e" runs and fails, "r" refuses,
// anything else answers. The name of the process is the place of the attempt; there is no process
// for attempts beyond the last.
func runAttempts(t *testing.T, is []qs.Interceptor, do string) (got string, ran int, err error) {
	t.Helper()
	w := sim.NewWorld(sim.Config{Seed: 1})
	defer w.Close()
	serving, stop := context.WithCancel(context.Background())
	attempts := 0
	for i := range do {
		w.Go(fmt.Sprint("s", i), func() {
			n := simulated(t, w, fmt.Sprint("sim://s", i), qs.Config{ShutdownTimeout: -1})
			repeat.Handle(n, func(_ context.Context, do string) (string, error) {
				switch do[i] {
				case 'r':
					return "", qs.Refuse(qs.ErrExhausted)
				case 'x':
					ran++
					w.Node(fmt.Sprint("s", i)).Crash()
					w.Sleep(time.Second) // it ends here
				case 'e':
					ran++
					return "", qs.Errorf(qs.ErrInternal, "it ran")
				}
				ran++
				return "done", nil
			})
			_ = n.Serve(serving)
		})
	}
	w.Go("client", func() {
		defer stop()
		w.Sleep(time.Millisecond)
		var n *qs.Node
		place := func(ctx context.Context, c *qs.Call, next func(context.Context) error) error { // each attempt has a place of its own
			to, err := n.Peer(ctx, fmt.Sprint("sim://s", attempts))
			require.NoError(t, err)
			attempts++
			c.Peer = to
			return next(ctx)
		}
		n = simulated(t, w, "sim://", qs.Config{ClientInterceptors: append(is, place)})
		defer n.Close()
		ctx, cancel := n.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		to, perr := n.Peer(ctx, "sim://s0")
		require.NoError(t, perr)
		got, err = repeat.Call(ctx, to, do)
	})
	require.NoError(t, w.Run(2*time.Hour))
	return got, ran, err
}

// TestFateOfAttempts checks that the fate of a call is that of all its attempts, whichever
// interceptor made them and whatever error it returns.
func TestFateOfAttempts(t *testing.T) {
	t.Parallel()
	type next = func(context.Context) error
	retry := qs.Retry(qs.RetryPolicy{Backoff: -1, BudgetRatio: -1})
	twice := func(ctx context.Context, _ *qs.Call, next next) error {
		if err := next(ctx); err == nil {
			return nil
		}
		return next(ctx)
	}
	mine := errors.New("mine")
	replaced := func(ctx context.Context, _ *qs.Call, next next) error { _ = next(ctx); return mine }
	wrapped := func(ctx context.Context, _ *qs.Call, next next) error {
		return fmt.Errorf("%w: %w", mine, next(ctx))
	}
	first := func(ctx context.Context, _ *qs.Call, next next) error { // returns the error of the first
		err := next(ctx)
		_ = next(ctx)
		return err
	}
	never := func(context.Context, *qs.Call, next) error { return mine }
	swallows := func(ctx context.Context, _ *qs.Call, next next) error { _ = next(ctx); return nil }
	for name, c := range map[string]struct {
		is   []qs.Interceptor
		do   string // of each attempt; there is no process for those beyond
		fate hg.Fate
		text string
	}{
		"one that may have run":           {nil, "x", qs.MaybeRan, "(may have run, after "},
		"retry, then nobody":              {[]qs.Interceptor{retry}, "x", qs.MaybeRan, "(may have run in attempt 1, "},
		"retry, refused, lost, nobody":    {[]qs.Interceptor{retry}, "rx", qs.MaybeRan, "(may have run in attempt 2, "},
		"retry, refused, nobody":          {[]qs.Interceptor{retry}, "r", qs.NotRun, "(did not run, after 3 of 3 attempts in "},
		"retry, lost, answered":           {[]qs.Interceptor{retry}, "xo", qs.Ran, ""},
		"retry, lost, failed":             {[]qs.Interceptor{retry}, "xe", qs.Ran, "(ran, after 2 of 3 attempts in "},
		"twice, then nobody":              {[]qs.Interceptor{twice}, "x", qs.MaybeRan, "(may have run in attempt 1, "},
		"twice, ran, then nobody":         {[]qs.Interceptor{twice}, "e", qs.Ran, "(ran in attempt 1"},
		"twice in retry":                  {[]qs.Interceptor{retry, twice}, "rx", qs.MaybeRan, ""},
		"retry in twice":                  {[]qs.Interceptor{twice, retry}, "xrr", qs.MaybeRan, "in attempt 1"},
		"the first error of two":          {[]qs.Interceptor{first}, "rx", qs.MaybeRan, "in attempt 2"},
		"a failure after an answer":       {[]qs.Interceptor{first}, "ro", qs.Ran, "in attempt 2"},
		"another error, may have run":     {[]qs.Interceptor{replaced}, "x", qs.MaybeRan, "mine"},
		"another error, did not run":      {[]qs.Interceptor{replaced}, "r", qs.NotRun, "mine (did not run)"},
		"another error after an answer":   {[]qs.Interceptor{replaced}, "o", qs.Ran, "mine (ran)"},
		"another error, repeated in it":   {[]qs.Interceptor{replaced, retry}, "xr", qs.MaybeRan, "mine"},
		"wrapped, repeated in it":         {[]qs.Interceptor{wrapped, retry}, "x", qs.MaybeRan, "in attempt 1"},
		"no attempt at all":               {[]qs.Interceptor{never}, "o", qs.NotRun, "mine (did not run)"},
		"an error that becomes a success": {[]qs.Interceptor{swallows}, "x", qs.Ran, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var reported error
			outermost := func(ctx context.Context, _ *qs.Call, next next) error { reported = next(ctx); return reported }
			got, ran, err := runAttempts(t, append([]qs.Interceptor{outermost}, c.is...), c.do)
			require.Equal(t, c.fate, qs.FateOf(err), "%v", err)
			require.Equal(t, c.fate, qs.FateOf(reported), "for the interceptors around it, too: %v", reported)
			require.False(t, c.fate == qs.NotRun && ran > 0 || c.fate == qs.Ran && ran == 0 && name != "an error that becomes a success")
			if err == nil {
				require.Empty(t, c.text)
				require.True(t, got == "done" || name == "an error that becomes a success")
				return
			}
			require.ErrorContains(t, err, c.text)
			if errors.Is(reported, mine) {
				require.ErrorIs(t, err, mine)
			}
		})
	}
}

// TestNextAtOnce checks that an interceptor may call next several times at once. When it has
// returned, attempts still in flight are abandoned and waited for; next does nothing then.
func TestNextAtOnce(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	requests, gaveUp := 0, make(chan struct{})
	s := server(t, qs.Config{}, func(n *qs.Node) {
		repeat.Handle(n, func(ctx context.Context, how string) (string, error) {
			mu.Lock()
			requests++
			slow := requests == 1
			mu.Unlock()
			switch {
			case slow && how == "hedge":
				<-ctx.Done()
				close(gaveUp)
				return "", ctx.Err()
			case slow:
				return "", qs.Refuse(qs.ErrExhausted)
			case how == "fail":
				return "", qs.ErrInternal
			}
			return how, nil
		})
	})
	var late func(context.Context) error
	n := open(t, "tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{func(ctx context.Context, c *qs.Call, next func(context.Context) error) error {
		late = next
		ended := make(chan error, 2)
		for range 2 {
			go func() { ended <- next(ctx) }()
		}
		err := <-ended
		if *c.In.(*string) == "fail" {
			if other := <-ended; qs.FateOf(other) == qs.NotRun {
				err = other
			}
		}
		return err
	}}})
	to := peer(t, n, s.Addr().String())
	got, err := repeat.Call(testContext(t), to, "hedge")
	require.NoError(t, err)
	require.Equal(t, "hedge", got)
	<-gaveUp
	require.ErrorIs(t, late(testContext(t)), qs.ErrInvalid)
	require.Equal(t, 2, requests)
	requests = 0
	_, err = repeat.Call(testContext(t), to, "fail")
	require.ErrorIs(t, err, qs.ErrExhausted, "what the interceptor has returned")
	require.Equal(t, qs.Ran, qs.FateOf(err), "and what became of the other")
}
