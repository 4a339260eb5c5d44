package qs_test

import (
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

type quota struct {
	Used, Most int
	Owner      string
}

// TestDetail checks that the caller gets the detail that a handler attaches to its error, and
// nothing else.
func TestDetail(t *testing.T) {
	t.Parallel()
	want := quota{7, 5, "ada"}
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		repeat.Handle(n, func(_ context.Context, how string) (string, error) {
			err := qs.Errorf(qs.ErrExhausted, "the quota is used up")
			if how == "bare" {
				return "", err
			}
			return "", fmt.Errorf("wrapped: %w", qs.WithDetail(err, want))
		})
	})
	_, err := repeat.Call(testContext(t), to, "detail")
	require.ErrorIs(t, err, qs.ErrExhausted)
	got, ok := qs.DetailOf[quota](err)
	require.True(t, ok)
	require.Equal(t, want, got)
	got, ok = qs.DetailOf[quota](fmt.Errorf("mine: %w", err))
	require.True(t, ok)
	require.Equal(t, want, got)
	_, ok = qs.DetailOf[int](err)
	require.False(t, ok, "it is of another type")
	_, err = repeat.Call(testContext(t), to, "bare")
	for _, err := range []error{err, nil, qs.ErrTimeout} {
		got, ok = qs.DetailOf[quota](err)
		require.False(t, ok)
		require.Zero(t, got)
	}
}

// TestCodeOf checks that a handler's code is the code of the call, in both packages, if it is one
// of those for handlers.
func TestCodeOf(t *testing.T) {
	t.Parallel()
	const mine = qs.Code(200)
	handlers := map[string]struct {
		err  error
		want qs.Code
	}{
		"NotFound":  {qs.Errorf(qs.ErrNotFound, "no key"), qs.ErrNotFound},
		"mine":      {qs.Errorf(mine, "mine"), mine},
		"refused":   {qs.Refuse(qs.ErrDenied), qs.ErrDenied},
		"no code":   {errors.New("oh"), hg.ErrRemote},
		"its own":   {qs.ErrPeerLost, hg.ErrRemote},
		"no entry":  {qs.Refuse(qs.ErrNoMethod), hg.ErrRemote}, // of something that the handler has called
		"timed out": {qs.ErrTimeout, hg.ErrRemote},
		"forwarded": {&hg.RemoteError{Code: qs.ErrNotFound, Text: "elsewhere"}, hg.ErrRemote}, // only the handler may set it
	}
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		repeat.Handle(n, func(_ context.Context, how string) (string, error) { return "", handlers[how].err })
	})
	for how, h := range handlers {
		_, err := repeat.Call(testContext(t), to, how)
		require.Equal(t, h.want, qs.CodeOf(err), how)
		require.Equal(t, h.want, hg.CodeOf(fmt.Errorf("wrapped: %w", err)), how)
		require.ErrorIs(t, err, hg.ErrRemote, how)
	}
}

// TestLibraryRefuses checks the codes with which the library at the target refuses a call: a method
// that the server does not have, whatever its kind, one of another kind, an input that is too long
// there, and a server that shuts down.
func TestLibraryRefuses(t *testing.T) {
	t.Parallel()
	block := make(chan struct{})
	entered := make(chan struct{}, 1)
	cfg := qs.Config{}
	cfg.MaxInput = 1000
	srv := open(t, "tcp://127.0.0.1:0", cfg)
	repeat.Handle(srv, func(_ context.Context, in string) (string, error) {
		if in == "block" {
			entered <- struct{}{}
			<-block
		}
		return in, nil
	})
	ctx, stop := context.WithCancel(testContext(t))
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx) }()
	to := peer(t, open(t, "tcp://", qs.Config{}), srv.Addr().String())
	refused := func(err error, code qs.Code) {
		t.Helper()
		require.Equal(t, code, qs.CodeOf(err), "%v", err)
		for _, c := range []qs.Code{code, hg.ErrRemote, qs.ErrRefused} {
			require.ErrorIs(t, err, c)
		}
		require.Equal(t, qs.NotRun, qs.FateOf(err))
		r, ok := hg.RemoteOf(err)
		require.True(t, ok)
		require.Equal(t, code, r.Code)
		require.True(t, r.Refused)
	}
	_, err := qs.Define[string, string]("unknown").Call(testContext(t), to, "x")
	refused(err, qs.ErrNoMethod)
	for _, err = range qs.DefineStream[string, string]("unknown.stream").Call(testContext(t), to, "x") {
		require.Error(t, err)
	}
	refused(err, qs.ErrNoMethod)
	_, err = qs.Define[string, string]("unknown").Go(testContext(t), to, "x").Wait(testContext(t))
	refused(err, qs.ErrNoMethod)
	_, err = repeat.Call(testContext(t), to, strings.Repeat("x", 2000))
	refused(err, hg.ErrOverflow)

	blocked := repeat.Go(testContext(t), to, "block")
	<-entered
	stop()
	for still := true; still; { // until it drains
		if _, err = repeat.Call(testContext(t), to, "x"); err != nil {
			still = false
		}
	}
	refused(err, qs.ErrDraining)
	close(block)
	_, err = blocked.Wait(testContext(t))
	require.NoError(t, err)
	require.NoError(t, <-done)
}

// TestRetryCodes checks that a call of an Idempotent method is repeated after an error of its
// handler with ErrUnavailable, ErrNotReady, ErrDraining or ErrAborted, or with the codes that the
// policy names.
func TestRetryCodes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		codes []qs.Code
		code  qs.Code
		again bool
	}{
		{nil, qs.ErrUnavailable, true}, {nil, qs.ErrNotReady, true}, {nil, qs.ErrDraining, true}, {nil, qs.ErrAborted, true}, {nil, qs.ErrInternal, false}, {nil, qs.ErrNotFound, false},
		{[]qs.Code{}, qs.ErrUnavailable, false},
		{[]qs.Code{200}, 200, true}, {[]qs.Code{200}, qs.ErrUnavailable, false},
	} {
		ran := 0
		register := func(_ *sim.World, _ string, n *qs.Node) {
			h := func(_ context.Context, _ string) (string, error) {
				if ran++; ran == 1 {
					return "", qs.Errorf(c.code, "another time")
				}
				return "done", nil
			}
			repeat.Handle(n, h)
			once.Handle(n, h)
		}
		runRetry(t, 1, qs.RetryPolicy{Codes: c.codes}, register, func(ctx context.Context, w *sim.World, n *qs.Node, to qs.Peer) {
			_, err := repeat.Call(ctx, to, "x")
			require.Equal(t, c.again, err == nil, "%+v: %v", c, err)
			ran = 0
			_, err = once.Call(ctx, to, "x")
			require.Equal(t, c.code, qs.CodeOf(err))
			require.Equal(t, 1, ran, "it is not idempotent")
		})
	}
}

// TestRefusedCallUsesNextAddress checks that a call that an address refuses is made at the next one at
// once, with every Balancer.
func TestRefusedCallUsesNextAddress(t *testing.T) {
	t.Parallel()
	oneAtATime(t)
	for _, pick := range []qs.Balancer{nil, qs.RoundRobin(), qs.LeastLoaded()} {
		for seed := range uint64(5) {
			runFleet(t, seed, 3, []qs.Interceptor{qs.Retry(qs.RetryPolicy{Backoff: time.Hour})}, func(ctx context.Context, f *fleet, n *qs.Node) {
				f.refuses = map[string]error{"s0": qs.Errorf(qs.ErrExhausted, "full"), "s1": qs.Errorf(qs.ErrUnavailable, "the disk is away")}
				to, err := n.PeerWith(ctx, qs.PeerOptions{Balancer: pick}, "sim://s0", "sim://s1", "sim://s2")
				require.NoError(t, err)
				took, failed := f.callers(ctx, to, 3, 100*time.Millisecond)
				require.Empty(t, failed)
				require.Less(t, quantile(took, 1), 10*time.Millisecond)
				require.Equal(t, len(took), f.served["s2"])
			})
		}
	}
}

// TestCallTimeout checks that CallTimeout bounds calls without a deadline, and no others: a stream,
// which may last by its nature, only ends at its own deadline.
func TestCallTimeout(t *testing.T) {
	t.Parallel()
	w := sim.NewWorld(sim.Config{Seed: 1})
	defer w.Close()
	ctx, stop := context.WithCancel(context.Background())
	slow := qs.DefineStream[int, int]("test/slow-items")
	w.Go("server", func() {
		n := simulated(t, w, "sim://server", qs.Config{ShutdownTimeout: -1})
		slow.Handle(n, func(ctx context.Context, _ int, send func(int) error) error {
			if err := n.Sleep(ctx, 2*time.Second); err != nil {
				return err
			}
			return send(1)
		})
		repeat.Handle(n, func(ctx context.Context, _ string) (string, error) { return "done", n.Sleep(ctx, 2*time.Second) })
		_ = n.Serve(ctx)
	})
	w.Go("client", func() {
		defer stop()
		w.Sleep(time.Millisecond)
		n := simulated(t, w, "sim://", qs.Config{CallTimeout: time.Second})
		defer n.Close()
		to, err := n.Peer(ctx, "sim://server")
		require.NoError(t, err)
		begun := w.Now()
		_, err = repeat.Call(ctx, to, "x")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.InDelta(t, time.Second, w.Now()-begun, float64(10*time.Millisecond))
		_, err = repeat.Go(ctx, to, "x").Wait(ctx)
		require.ErrorIs(t, err, qs.ErrTimeout)
		longer, cancel := n.WithTimeout(ctx, time.Minute)
		defer cancel()
		_, err = repeat.Call(longer, to, "x")
		require.NoError(t, err)
		items := 0
		for _, err := range slow.Call(ctx, to, 1) {
			require.NoError(t, err)
			items++
		}
		require.Equal(t, 1, items)
	})
	require.NoError(t, w.Run(time.Hour))
}

// TestFailFast checks that a call for which there is no envelope ends at once; without WithNoWait
// it waits for one.
func TestFailFast(t *testing.T) {
	t.Parallel()
	var cfg qs.Config
	cfg.HG.NA.Envelopes, cfg.HG.MaxActivePerPeer = 2, 1
	release := make(chan struct{})
	c, to := pair(t, cfg, func(n *qs.Node) {
		repeat.Handle(n, func(ctx context.Context, _ string) (string, error) {
			select {
			case <-release:
			case <-ctx.Done():
			}
			return "done", nil
		})
	})
	_, err := to.Ping(testContext(t))
	require.NoError(t, err)
	var all []*qs.Future[string]
	full := func() bool {
		st := c.HG().Stats()
		return st.NA.Queued > 0
	}
	for range 4 { // one is handled, two wait there, one waits here
		all = append(all, repeat.Go(testContext(t), to, "x"))
	}
	require.NoError(t, c.HG().Wait(testContext(t), full))
	_, err = repeat.Call(hg.WithNoWait(testContext(t)), to, "x")
	require.ErrorIs(t, err, hg.ErrNoCredit)
	require.Equal(t, qs.NotRun, qs.FateOf(err))
	close(release)
	for _, f := range all {
		_, err := f.Wait(testContext(t))
		require.NoError(t, err)
	}
	_, err = repeat.Call(hg.WithNoWait(testContext(t)), to, "x")
	require.NoError(t, err)
}

// TestMethodLimits checks that a method accepts requests up to its limit, and refuses the rest at
// once; another method of the node is not affected.
func TestMethodLimits(t *testing.T) {
	t.Parallel()
	oneAtATime(t)
	tight := qs.Define[int, int]("test/tight", qs.MaxConcurrent(8), qs.MaxQueue(32))
	for seed := range uint64(5) {
		w := sim.NewWorld(sim.Config{Seed: seed})
		ctx, stop := context.WithCancel(context.Background())
		active, most, left, ran := 0, 0, 20, 0
		var refused, ok int
		w.Go("server", func() {
			n := simulated(t, w, "sim://server", qs.Config{ShutdownTimeout: -1})
			tight.Handle(n, func(ctx context.Context, i int) (int, error) {
				active++
				ran++
				most = max(most, active)
				defer func() { active-- }()
				return i, n.Sleep(ctx, 100*time.Millisecond)
			})
			repeat.Handle(n, func(context.Context, string) (string, error) { return "done", nil })
			_ = n.Serve(ctx)
		})
		for c := range 20 {
			w.Go(fmt.Sprint("c", c), func() {
				w.Sleep(time.Millisecond)
				n := simulated(t, w, "sim://", qs.Config{})
				defer n.Close()
				to, err := n.Peer(ctx, "sim://server")
				require.NoError(t, err)
				var all []*qs.Future[int]
				for i := range 20 {
					all = append(all, tight.Go(ctx, to, i))
				}
				begun := w.Now()
				_, err = repeat.Call(ctx, to, "x")
				require.NoError(t, err)
				require.Less(t, w.Now()-begun, 20*time.Millisecond)
				for _, f := range all {
					switch _, err := f.Wait(ctx); {
					case err == nil:
						ok++
					default:
						refused++
						require.ErrorIs(t, err, qs.ErrExhausted)
						require.Equal(t, qs.NotRun, qs.FateOf(err))
					}
				}
				if left--; left == 0 {
					stop()
				}
			})
		}
		require.NoError(t, w.Run(time.Hour), "seed %d", seed)
		stop()
		w.Close()
		require.Equal(t, 8, most)
		require.Equal(t, ok, ran)
		require.Equal(t, 40, ok, "8 at work and 32 that wait; all arrived at once")
		require.Equal(t, 360, refused)
	}
}

// TestRootAuthorize checks that the authorizer gets the caller, the method, and the token; a
// request that it denies does not run.
func TestRootAuthorize(t *testing.T) {
	t.Parallel()
	ran := make(chan string, 100)
	cfg := qs.Config{Authorize: func(ctx context.Context, c *qs.Call) error {
		token, _ := c.Metadata.Get("token")
		switch {
		case c.Method != repeat.Name() || token == "good":
			return nil
		case token == "panic":
			panic("oh")
		case token == "coded":
			return qs.Errorf(qs.ErrDenied, "not today")
		case c.Peer.Addr().IsZero() || c.Caller().Addr != c.Peer.Addr() || c.In != nil:
			return nil // it would be a defect, and the call succeed
		}
		return errors.New("a token, please")
	}}
	_, to := pair(t, cfg, func(n *qs.Node) {
		repeat.Handle(n, func(_ context.Context, how string) (string, error) { ran <- how; return how, nil })
	})
	_, err := repeat.Call(qs.WithMetadata(testContext(t), "token", "good"), to, "x")
	require.NoError(t, err)
	<-ran
	for token, code := range map[string]qs.Code{"bad": qs.ErrPermission, "panic": qs.ErrPermission, "coded": qs.ErrDenied} {
		_, err := repeat.Call(qs.WithMetadata(testContext(t), "token", token), to, token)
		require.ErrorIs(t, err, code, token)
		require.Equal(t, qs.NotRun, qs.FateOf(err))
	}
	require.Empty(t, ran)
	both := cfg
	both.HG.Authorize = func(context.Context, hg.Caller, *hg.RPC) error { return nil }
	_, err = qs.Open("tcp://", both)
	require.ErrorContains(t, err, "Authorize and HG.Authorize are set")
}

// TestMaxPeers checks that active processes are accepted up to the limit. An idle one makes room
// for another.
func TestMaxPeers(t *testing.T) {
	t.Parallel()
	held, over := make(chan bool, 3), make(chan bool)
	s := server(t, qs.Config{MaxPeers: 3}, func(n *qs.Node) {
		repeat.Handle(n, func(_ context.Context, in string) (string, error) {
			if in == "hold" {
				held <- true
				<-over
			}
			return in, nil
		})
	})
	var holding []*qs.Future[string]
	for i := range 4 {
		c := open(t, "tcp://", qs.Config{})
		to := peer(t, c, s.Addr().String())
		_, err := repeat.Call(testContext(t), to, "x")
		require.Equal(t, i < 3, err == nil, "%d: %v", i, err)
		if i == 0 { // there is room for long inputs, too
			for range 3 {
				_, err := repeat.Call(testContext(t), to, strings.Repeat("x", 500_000))
				require.NoError(t, err)
			}
			require.EqualValues(t, 2, c.HG().Stats().Inline)
		}
		if i < 3 {
			holding = append(holding, repeat.Go(testContext(t), to, "hold"))
			<-held
			continue
		}
		close(over)
		for _, f := range holding {
			_, err := f.Wait(testContext(t))
			require.NoError(t, err)
		}
		for ctx := testContext(t); err != nil; { // until it may dial again, and a handler is done with its answer
			require.NoError(t, ctx.Err())
			_, err = repeat.Call(ctx, to, "x")
		}
		require.Positive(t, s.HG().Stats().NA.PeersIdle, "one at least: another is called when the first is slow")
	}
	_, err := qs.Open("tcp://", qs.Config{MaxPeers: -1})
	require.ErrorContains(t, err, "MaxPeers is -1")
	var cfg qs.Config
	cfg.MaxPeers, cfg.HG.NA.Budget = 3, 1<<20
	_, err = qs.Open("tcp://", cfg)
	require.ErrorContains(t, err, "set one of them")
}
