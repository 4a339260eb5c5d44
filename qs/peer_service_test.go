package qs_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A registry is a Resolver in a world: it reports addrs, at each change.
type registry struct {
	w       *sim.World
	addrs   []string
	err     error
	changes int
	polled  bool // each Watch reports addrs, and returns
	watches int  // ever
	running int
}

func (r *registry) set(addrs ...string) {
	r.addrs, r.err = addrs, nil
	r.changes++
}

func (r *registry) Watch(ctx context.Context, service string, update func([]string, error)) error {
	r.watches++
	r.running++
	defer func() { r.running-- }()
	if service != "kv" {
		return fmt.Errorf("no service %q", service)
	}
	for lastChanges := -1; ctx.Err() == nil; r.w.Sleep(20 * time.Millisecond) {
		if lastChanges != r.changes {
			lastChanges = r.changes
			update(r.addrs, r.err)
		}
		if r.polled {
			return nil
		}
	}
	return ctx.Err()
}

// A fleet is servers in a world, all of which serve repeat and once, and a client.
type fleet struct {
	*sim.World
	t       *testing.T
	served  map[string]int
	ended   map[string]int
	refuses map[string]error
	takes   map[string]time.Duration // to answer
	end     context.CancelFunc
	ctx     context.Context
}

// runFleet runs a client in a world with servers s0, s1 and so on.
func runFleet(t *testing.T, seed uint64, servers int, is []qs.Interceptor, client func(ctx context.Context, f *fleet, n *qs.Node)) {
	t.Helper()
	f := &fleet{World: sim.NewWorld(sim.Config{Seed: seed}), t: t, served: map[string]int{}, ended: map[string]int{}, takes: map[string]time.Duration{}}
	defer f.Close()
	f.ctx, f.end = context.WithCancel(context.Background())
	for i := range servers {
		f.begin(fmt.Sprint("s", i))
	}
	f.World.Go("client", func() {
		defer f.end()
		f.Sleep(time.Millisecond)
		n := simulated(t, f.World, "sim://", qs.Config{ClientInterceptors: is})
		defer n.Close()
		ctx, cancel := n.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		client(ctx, f, n)
	})
	require.NoError(t, f.Run(2*time.Hour), "seed %d", seed)
}

// begin begins a server.
func (f *fleet) begin(name string) {
	f.World.Go(name, func() {
		cfg := qs.Config{ShutdownTimeout: -1}
		cfg.HG.MaxActivePerPeer = 1000
		n := simulated(f.t, f.World, "sim://"+name, cfg)
		serve := func(ctx context.Context, _ string) (string, error) {
			if err := f.refuses[name]; err != nil {
				return "", qs.Refuse(err)
			}
			f.served[name]++
			defer func() { f.ended[name]++ }()
			if err := n.Sleep(ctx, cmp.Or(f.takes[name], 2*time.Millisecond)); err != nil {
				return "", err
			}
			return name, nil
		}
		repeat.Handle(n, serve)
		once.Handle(n, serve)
		_ = n.Serve(f.ctx)
	})
}

// callers has so many coroutines call to, one call after the other, for d; it returns how long each call took, and how many failed.
func (f *fleet) callers(ctx context.Context, to qs.Peer, callers int, d time.Duration) (took []time.Duration, failed []error) {
	end, left := f.Now()+d, callers
	for range callers {
		f.Spawn(func() {
			for f.Now() < end {
				begun := f.Now()
				_, err := repeat.Call(ctx, to, "x")
				if took = append(took, f.Now()-begun); err != nil {
					failed = append(failed, err)
				}
			}
			left--
		})
	}
	for left > 0 {
		f.Sleep(time.Millisecond)
	}
	return took, failed
}

// takeServed returns the number of requests that each server has served since the last share.
func (f *fleet) takeServed() map[string]int {
	was := f.served
	f.served, f.ended = map[string]int{}, map[string]int{}
	return was
}

// quantile is the q-th part of took, 0.5 for the median.
func quantile(took []time.Duration, q float64) time.Duration {
	took = slices.Sorted(slices.Values(took))
	return took[min(int(q*float64(len(took))), len(took)-1)]
}

// TestResolver checks that a Peer follows its Resolver, one Watch serves all Peers, and ends when
// there are no calls.
func TestResolver(t *testing.T) {
	t.Parallel()
	oneAtATime(t)
	for _, polled := range []bool{false, true} {
		for seed := range uint64(5) {
			runFleet(t, seed, 3, nil, func(ctx context.Context, f *fleet, n *qs.Node) {
				r := &registry{w: f.World, polled: polled}
				o := qs.PeerOptions{Resolver: r, Balancer: qs.RoundRobin(), ResolveInterval: time.Second}
				_, err := n.PeerWith(ctx, o, "kv")
				require.ErrorIs(t, err, qs.ErrUnreachable, "there is no address")
				_, err = n.PeerWith(ctx, o, "nobody")
				require.ErrorContains(t, err, `no service "nobody"`)

				r.set("sim://s0", "sim://s1")
				f.Sleep(1100 * time.Millisecond)
				to, err := n.PeerWith(ctx, o, "kv")
				require.NoError(t, err)
				require.Equal(t, "kv", to.String())
				other, err := n.PeerWith(ctx, o, "kv")
				require.NoError(t, err)
				f.takeServed()
				_, failed := f.callers(ctx, to, 4, 200*time.Millisecond)
				require.Empty(t, failed)
				got := f.takeServed()
				require.InEpsilon(t, got["s0"], got["s1"], 0.01, "%v", got)

				r.set("sim://s2", "sim://s1") // s0 has exited
				f.Sleep(1100 * time.Millisecond)
				_, failed = f.callers(ctx, to, 4, 200*time.Millisecond)
				require.Empty(t, failed)
				got = f.takeServed()
				require.Zero(t, got["s0"])
				require.InEpsilon(t, got["s1"], got["s2"], 0.01, "%v", got)

				r.changes, r.err = r.changes+1, errors.New("the registry is down")
				f.Sleep(1100 * time.Millisecond)
				_, failed = f.callers(ctx, other, 1, 200*time.Millisecond)
				require.Empty(t, failed)
				require.Len(t, to.Addrs(), 2, "an error keeps the earlier addresses")
				before := r.watches
				if !polled {
					require.Equal(t, 1, r.running)
					require.LessOrEqual(t, before, 6, "one Watch for both, and one without callers")
				}

				f.Sleep(10 * time.Second)
				require.Zero(t, r.running, "there are no calls")
				before = r.watches
				f.Sleep(10 * time.Second)
				require.Equal(t, before, r.watches)
				r.set("sim://s0")
				_, err = repeat.Call(ctx, to, "x")
				require.NoError(t, err)
				f.Sleep(50 * time.Millisecond)
				require.Greater(t, r.watches, before, "a call begins it again")
				f.takeServed()
				_, failed = f.callers(ctx, other, 1, 200*time.Millisecond)
				require.Empty(t, failed)
				require.Zero(t, f.takeServed()["s1"])

				require.NoError(t, n.Close())
				f.Sleep(100 * time.Millisecond)
				require.Zero(t, r.running)
			})
		}
	}
}

// TestResolverCalledAfterFailure checks that when an address has failed a Resolver without Watch is called
// at once, but not twice within a second.
func TestResolverCalledAfterFailure(t *testing.T) {
	t.Parallel()
	oneAtATime(t)
	for seed := range uint64(5) {
		runFleet(t, seed, 3, []qs.Interceptor{qs.Retry(qs.RetryPolicy{})}, func(ctx context.Context, f *fleet, n *qs.Node) {
			r := &registry{w: f.World, polled: true}
			r.set("sim://s0", "sim://s1")
			to, err := n.PeerWith(ctx, qs.PeerOptions{Resolver: r, ResolveInterval: time.Hour}, "kv")
			require.NoError(t, err)
			_, err = repeat.Call(ctx, to, "x")
			require.NoError(t, err)
			require.NoError(t, n.Sleep(ctx, 2*time.Second))
			require.Equal(t, 1, r.watches)
			f.Node("s0").Crash()
			r.set("sim://s2")
			begun := f.Now()
			_, failed := f.callers(ctx, to, 1, 100*time.Millisecond)
			require.Empty(t, failed)
			require.Equal(t, 2, r.watches, "%v", f.Now()-begun)
			require.Equal(t, "sim://s2", to.Addr().String())
			f.Node("s2").Crash()
			f.callers(ctx, to, 2, 3*time.Second)
			require.Greater(t, r.watches, 2)
			require.LessOrEqual(t, r.watches, 8)
		})
	}
}

// TestHealth checks three servers of which one freezes. With Health no call that begins later waits
// for it.
func TestHealth(t *testing.T) {
	t.Parallel()
	oneAtATime(t)
	for seed := range uint64(3) {
		for _, pick := range []qs.Balancer{nil, qs.RoundRobin(), qs.LeastLoaded()} {
			runFleet(t, seed, 3, []qs.Interceptor{qs.Retry(qs.RetryPolicy{})}, func(ctx context.Context, f *fleet, n *qs.Node) {
				to, err := n.PeerWith(ctx, qs.PeerOptions{Balancer: pick, HealthInterval: 200 * time.Millisecond}, "sim://s0", "sim://s1", "sim://s2")
				require.NoError(t, err)
				_, failed := f.callers(ctx, to, 4, 200*time.Millisecond)
				require.Empty(t, failed)
				f.Node("s0").Pause(0)
				_, failed = f.load(ctx, to, 500*time.Millisecond)
				require.Empty(t, failed)
				took, failed := f.load(ctx, to, 5*time.Second)
				require.Empty(t, failed)
				require.Less(t, slices.Max(took), 500*time.Millisecond, "seed %d", seed)
				f.Node("s0").Resume()
				f.takeServed()
				_, failed = f.load(ctx, to, 10*time.Second)
				require.Empty(t, failed)
				require.Positive(t, f.takeServed()["s0"], "it gets calls again")
				require.NoError(t, n.Sleep(ctx, time.Second))
				require.Zero(t, n.Looks(), "without calls there are no probes")
			})
		}
	}
}

// TestHealthNotReady checks that an address whose process reports that it is not ready gets no
// calls until it is.
func TestHealthNotReady(t *testing.T) {
	t.Parallel()
	var ready *qs.Node
	var addrs []string
	for _, name := range []string{"a", "b"} {
		s := server(t, qs.Config{}, func(n *qs.Node) {
			repeat.Handle(n, func(context.Context, string) (string, error) { return name, nil })
		})
		if addrs = append(addrs, s.Addr().String()); ready == nil {
			ready = s
		}
	}
	ctx, n := testContext(t), open(t, "tcp://", qs.Config{})
	to, err := n.PeerWith(ctx, qs.PeerOptions{HealthInterval: 500 * time.Millisecond}, addrs...)
	require.NoError(t, err)
	until := func(name string) {
		for got := ""; got != name; pause(time.Millisecond) {
			got, err = repeat.Call(ctx, to, "")
			require.NoError(t, err, "no call goes to %s", name)
		}
	}
	until("a")
	ready.SetReady(false)
	for n := 0; n < 500; { // until the next probe, both get calls
		got, err := repeat.Call(ctx, to, "")
		require.NoError(t, err, "the calls still go to both")
		if n++; got != "b" {
			n = 0
		}
	}
	ready.SetReady(true)
	until("a")
}

// load begins a call each 10 ms for d, and does not wait for calls that take longer than a second;
// it returns the time of each.
func (f *fleet) load(ctx context.Context, to qs.Peer, d time.Duration) (took []time.Duration, failed []error) {
	for end := f.Now() + d; f.Now() < end; f.Sleep(10 * time.Millisecond) {
		f.Spawn(func() {
			begun := f.Now()
			_, err := repeat.Call(ctx, to, "x")
			if took = append(took, f.Now()-begun); err != nil {
				failed = append(failed, err)
			}
		})
	}
	return took, failed
}

// TestLeastLoaded checks three servers of which one is 10 times slower.
func TestLeastLoaded(t *testing.T) {
	t.Parallel()
	oneAtATime(t)
	for seed := range uint64(5) {
		var p90 [2]time.Duration
		for i, slow := range []time.Duration{0, 20 * time.Millisecond} {
			runFleet(t, seed, 3, nil, func(ctx context.Context, f *fleet, n *qs.Node) {
				f.takes["s0"] = slow
				to, err := n.PeerWith(ctx, qs.PeerOptions{Balancer: qs.LeastLoaded()}, "sim://s0", "sim://s1", "sim://s2")
				require.NoError(t, err)
				took, failed := f.callers(ctx, to, 16, 200*time.Millisecond)
				require.Empty(t, failed)
				p90[i] = quantile(took, 0.9)
				got := f.takeServed()
				t.Logf("seed %d: %v p50 %v p90 %v p99 %v", seed, got, quantile(took, 0.5), p90[i], quantile(took, 0.99))
				if i == 1 {
					require.LessOrEqual(t, float64(got["s0"]), 0.02*float64(len(took)), "%v", got)
				} else {
					require.InEpsilon(t, float64(len(took))/3, got["s0"], 0.1, "%v", got)
				}
			})
		}
		require.LessOrEqual(t, p90[1], 2*p90[0], "seed %d", seed)
	}
}

// TestLeastLoadedWeighs checks that a slow address gets fewer calls than others, and one without
// measurements, or that was not called for long, not all of them.
func TestLeastLoadedWeighs(t *testing.T) {
	t.Parallel()
	at := func(inFlight int, took time.Duration) qs.Candidate {
		return qs.Candidate{InFlight: inFlight, Latency: took}
	}
	const ms = time.Millisecond
	for _, row := range []struct {
		ts   []qs.Candidate
		want int
	}{
		{[]qs.Candidate{at(0, 50*ms), at(2, 5*ms)}, 1},
		{[]qs.Candidate{at(0, 50*ms), at(4, 5*ms)}, 0},
		{[]qs.Candidate{at(8, 0), at(1, 5*ms)}, 1},
		{[]qs.Candidate{at(2, 0), at(1, 5*ms)}, 0},
		{[]qs.Candidate{at(1, 0), at(0, 0)}, 1},
		{[]qs.Candidate{{Latency: ms, Failing: true}, at(90, 50*ms)}, 1},
		{[]qs.Candidate{{Latency: ms, Failing: true}}, -1},
		{[]qs.Candidate{{LentBytes: 3 << 20, Latency: 5 * ms}, at(2, 5*ms)}, 1},
	} {
		require.Equal(t, row.want, qs.LeastLoaded().Pick(nil, row.ts), "%v", row.ts)
	}
}

// TestLogHasFateAtClientOnly checks that a server that logs the error of its own handler logs
// no fate.
func TestLogHasFateAtClientOnly(t *testing.T) {
	t.Parallel()
	var here, there bytes.Buffer
	logged := func(b *bytes.Buffer) []qs.Interceptor {
		return []qs.Interceptor{qs.LogCalls(slog.New(slog.NewTextHandler(b, nil)))}
	}
	s := server(t, qs.Config{ServerInterceptors: logged(&there)}, func(n *qs.Node) {
		upper.Handle(n, func(context.Context, string) (string, error) { return "", qs.Errorf(qs.ErrNotFound, "no key") })
	})
	n := open(t, "tcp://", qs.Config{ClientInterceptors: logged(&here)})
	_, err := upper.Call(testContext(t), peer(t, n, s.Addr().String()), "a")
	require.ErrorIs(t, err, qs.ErrNotFound)
	require.Contains(t, here.String(), "fate=ran")
	require.Contains(t, there.String(), `error="no key"`)
	require.NotContains(t, there.String(), "fate")
}
