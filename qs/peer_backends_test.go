package qs_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// startCalls makes 100 calls a second for a while, waits for all of them, and returns how long each took, and how many failed.
func startCalls(ctx context.Context, w *sim.World, to qs.Peer, d time.Duration) (took []time.Duration, failed []error) {
	ends := 0
	for end := w.Now() + d; w.Now() < end; w.Sleep(10 * time.Millisecond) {
		i, begun := len(took), w.Now()
		took = append(took, 0)
		w.Go("client", func() {
			_, err := repeat.Call(ctx, to, "x")
			if took[i] = w.Now() - begun; err != nil {
				failed = append(failed, err)
			}
			ends++
		})
	}
	for ends < len(took) {
		w.Sleep(10 * time.Millisecond)
	}
	return took, failed
}

// countSlower returns how many took longer.
func countSlower(took []time.Duration, than time.Duration) (n int) {
	for _, d := range took {
		if d > than {
			n++
		}
	}
	return n
}

// TestReplicaFreezes checks two addresses of which one freezes, or exits, under load. No call
// fails, none waits for it once the failure is detected, and it gets calls again soon after it
// continues.
func TestReplicaFreezes(t *testing.T) {
	t.Parallel()
	oneAtATime(t)
	for _, dies := range []bool{false, true} {
		for seed := range uint64(4) {
			served := map[string]int{}
			register := func(w *sim.World, name string, n *qs.Node) {
				repeat.Handle(n, func(context.Context, string) (string, error) { served[name]++; return name, nil })
			}
			runRetry(t, seed, qs.RetryPolicy{}, register, func(ctx context.Context, w *sim.World, n *qs.Node, to qs.Peer) {
				got, err := repeat.Call(ctx, to, "warm")
				require.NoError(t, err)
				require.Equal(t, "one", got)
				if dies {
					w.Node("one").Crash()
				} else {
					w.Node("one").Pause(0)
				}
				took, failed := startCalls(ctx, w, to, 20*time.Second)
				require.Empty(t, failed, "seed %d", seed)
				require.LessOrEqual(t, slices.Max(took), 5100*time.Millisecond, "seed %d", seed)
				require.Zero(t, countSlower(took[560:], 100*time.Millisecond), "seed %d: calls that wait for an address that is known to fail", seed)
				require.Equal(t, "sim://two", to.Addr().String())
				if dies {
					return
				}
				w.Node("one").Resume()
				before := served["one"]
				_, failed = startCalls(ctx, w, to, 40*time.Second)
				require.Empty(t, failed)
				require.Greater(t, served["one"]-before, 400, "seed %d: it serves again", seed)
				require.Equal(t, "sim://one", to.Addr().String())
			})
		}
	}
}

// TestHungHandlers checks a process whose handlers hang and that answers probes. One call at a time
// tries it, after longer and longer pauses, and the others use another address. The pauses are of
// the address, for every pick.
func TestHungHandlers(t *testing.T) {
	t.Parallel()
	oneAtATime(t)
	last := &preferLast{}
	for _, pick := range []qs.Balancer{nil, last} {
		hangs := map[string]bool{"one": pick == nil, "two": pick != nil}
		register := func(w *sim.World, name string, n *qs.Node) {
			repeat.Handle(n, func(ctx context.Context, _ string) (string, error) {
				if hangs[name] {
					_ = n.Sleep(ctx, time.Hour)
				}
				return name, nil
			})
		}
		runRetry(t, 1, qs.RetryPolicy{ProgressTimeout: time.Second}, register, func(ctx context.Context, w *sim.World, n *qs.Node, _ qs.Peer) {
			to, err := n.PeerWith(ctx, qs.PeerOptions{Balancer: pick}, "sim://one", "sim://two")
			require.NoError(t, err)
			bad := to.Addr()
			took, failed := startCalls(ctx, w, to, time.Minute)
			require.Empty(t, failed)
			require.Less(t, countSlower(took[:105], 500*time.Millisecond), 105)
			late := countSlower(took[105:], 500*time.Millisecond)
			require.GreaterOrEqual(t, late, 3, "no call tried it")
			require.LessOrEqual(t, late, 7, "pauses of 1, 2, 4, 8, 16 s, half of each drawn")
			clear(hangs)
			_, failed = startCalls(ctx, w, to, time.Minute)
			require.Empty(t, failed)
			require.Equal(t, bad, to.Addr(), "it does well again")
		})
	}
	require.Greater(t, last.most, 90, "those of the first second wait at once")
	require.Less(t, last.most, 110)
}

// A preferLast is a Balancer that prefers the last address.
type preferLast struct{ most int } // attempts in flight there

func (l *preferLast) Pick(_ *qs.Call, ts []qs.Candidate) int {
	for i, t := range slices.Backward(ts) {
		if i > 0 {
			l.most = max(l.most, t.InFlight)
		}
		if !t.Failing {
			return i
		}
	}
	return -1
}

// TestStaleOutcome checks that a call that began before an address failed is no evidence of its health:
// a server that refuses new calls ends the old ones well.
func TestStaleOutcome(t *testing.T) {
	t.Parallel()
	oneAtATime(t)
	full, refused := false, 0
	runRetryWith(t, 1, qs.RetryPolicy{}, 100, func(_ *sim.World, name string, n *qs.Node) {
		repeat.Handle(n, func(context.Context, string) (string, error) {
			if name == "one" && full {
				refused++
				return "", qs.Refuse(qs.Errorf(qs.ErrUnavailable, "the disk is full"))
			}
			return name, nil
		})
		once.Handle(n, func(ctx context.Context, _ string) (string, error) {
			_ = n.Sleep(ctx, 40*time.Second)
			return name, nil
		})
	}, func(ctx context.Context, w *sim.World, n *qs.Node, to qs.Peer) {
		var old []*qs.Future[string]
		for range 50 {
			old = append(old, once.Go(ctx, to, ""))
			w.Sleep(time.Second / 2)
		}
		full = true
		_, failed := startCalls(ctx, w, to, time.Minute) // the old ones end from 15 s on, each half second
		require.Empty(t, failed)
		require.GreaterOrEqual(t, refused, 3)
		require.LessOrEqual(t, refused, 7)
		for _, f := range old {
			got, err := f.Wait(ctx)
			require.NoError(t, err)
			require.Equal(t, "one", got)
		}
	})
}

// TestLongTrialCall checks that an address that is healthy again gets its calls back although the trial
// call lasts, as a stream may for days.
func TestLongTrialCall(t *testing.T) {
	t.Parallel()
	oneAtATime(t)
	full, served := false, 0
	runRetryWith(t, 1, qs.RetryPolicy{}, 100, func(_ *sim.World, name string, n *qs.Node) {
		repeat.Handle(n, func(context.Context, string) (string, error) {
			if name == "one" && full {
				return "", qs.Refuse(qs.Errorf(qs.ErrUnavailable, "the disk is full"))
			}
			if name == "one" {
				served++
			}
			return name, nil
		})
		once.Handle(n, func(ctx context.Context, _ string) (string, error) { return name, n.Sleep(ctx, time.Minute) })
	}, func(ctx context.Context, w *sim.World, n *qs.Node, to qs.Peer) {
		full = true
		_, failed := startCalls(ctx, w, to, 100*time.Millisecond)
		require.Empty(t, failed)
		full = false
		w.Sleep(time.Second)
		got, err := repeat.Call(ctx, to, "has it probed")
		require.NoError(t, err)
		require.Equal(t, "two", got)
		w.Sleep(100 * time.Millisecond)
		long := once.Go(ctx, to, "")
		w.Sleep(100 * time.Millisecond)
		_, failed = startCalls(ctx, w, to, 10*time.Second)
		require.Empty(t, failed)
		require.False(t, long.Over())
		require.Greater(t, served, 800)
		got, err = long.Wait(ctx)
		require.NoError(t, err)
		require.Equal(t, "one", got, "it is the one that tries")
	})
}

// TestProbeEndsWithNode checks that a probe of an address that does not answer does not delay
// Close, and is not cut off as a call.
func TestProbeEndsWithNode(t *testing.T) {
	t.Parallel()
	oneAtATime(t)
	for _, closes := range []bool{true, false} {
		runRetry(t, 1, qs.RetryPolicy{}, func(_ *sim.World, name string, n *qs.Node) {
			repeat.Handle(n, func(context.Context, string) (string, error) { return name, nil })
		}, func(ctx context.Context, w *sim.World, n *qs.Node, to qs.Peer) {
			w.Node("one").Pause(0)
			_, failed := startCalls(ctx, w, to, 7*time.Second)
			require.Empty(t, failed)
			require.Equal(t, 1, n.Probes(), "it probes the one that is frozen")
			begun := w.Now()
			if closes {
				require.NoError(t, n.Close())
			} else {
				require.NoError(t, n.Shutdown(ctx))
			}
			require.Less(t, w.Now()-begun, 500*time.Millisecond)
			require.Zero(t, n.Probes())
			w.Node("one").Resume()
		})
	}
}

// TestRetryTriesEveryAddress checks that a call that fails at many addresses tries each once before it
// tries one again.
func TestRetryTriesEveryAddress(t *testing.T) {
	t.Parallel()
	const servers = 25
	ask := qs.Define[int, int]("test/everywhere", qs.Idempotent())
	var asked [servers]atomic.Int32
	var addrs []string
	for i := range servers {
		s := server(t, qs.Config{}, func(n *qs.Node) {
			ask.Handle(n, func(context.Context, int) (int, error) {
				if asked[i].Add(1); i == servers-1 {
					return 42, nil
				}
				return 0, qs.Errorf(qs.ErrUnavailable, "not here")
			})
		})
		addrs = append(addrs, s.Addr().String())
	}
	for _, pick := range []qs.Balancer{nil, qs.RoundRobin(), qs.LeastLoaded()} {
		c := open(t, "tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{qs.Retry(qs.RetryPolicy{Attempts: servers, BudgetRatio: -1, Backoff: -1})}})
		p, err := c.PeerWith(testContext(t), qs.PeerOptions{Balancer: pick}, addrs...)
		require.NoError(t, err)
		out, err := ask.Call(testContext(t), p, 1)
		require.NoError(t, err)
		require.Equal(t, 42, out)
		for i := range asked {
			require.LessOrEqual(t, asked[i].Swap(0), int32(1), "server %d, with pick %T", i, pick)
		}
	}
}

// A changingResolver is a Resolver whose answer the test gives.
type changingResolver struct{ updates chan []string }

func (r *changingResolver) Watch(ctx context.Context, _ string, update func([]string, error)) error {
	for {
		select {
		case addrs := <-r.updates:
			update(addrs, nil)
		case <-ctx.Done():
			return nil
		}
	}
}

// A carelessBalancer is a Balancer that takes for granted that there is a target.
type carelessBalancer struct{}

func (carelessBalancer) Pick(_ *qs.Call, ts []qs.Candidate) int { return (len(ts) + 1) % len(ts) }

// TestManyAddresses checks a Resolver with no addresses, and with more than a Peer can have: a
// Balancer is used only where there is a choice, and the first 1,024 count, which is logged.
func TestManyAddresses(t *testing.T) {
	t.Parallel()
	var logged bytes.Buffer
	c := open(t, "tcp://", qs.Config{Logger: slog.New(slog.NewTextHandler(&logged, nil))})
	r := &changingResolver{make(chan []string, 1)}
	var many []string
	for i := range 5000 {
		many = append(many, fmt.Sprintf("tcp://127.0.0.1:%d", i+1), fmt.Sprintf("tcp://127.0.0.1:%d", i+1))
	}
	r.updates <- many
	p, err := c.PeerWith(testContext(t), qs.PeerOptions{Resolver: r, Balancer: carelessBalancer{}}, "service")
	require.NoError(t, err)
	require.Len(t, p.Addrs(), 1024, "each was listed twice")
	fixed := make([]string, 0, 5000)
	for i := range 5000 {
		fixed = append(fixed, many[2*i])
	}
	f, err := c.PeerWith(testContext(t), qs.PeerOptions{}, fixed...)
	require.NoError(t, err)
	require.Len(t, f.Addrs(), 1024)
	require.Contains(t, logged.String(), "found=5000 most=1024")
	r.updates <- nil
	for ctx := testContext(t); len(p.Addrs()) > 0; {
		require.NoError(t, ctx.Err())
		runtime.Gosched()
	}
	_, err = repeat.Call(testContext(t), p, "x")
	require.ErrorIs(t, err, qs.ErrUnreachable)
	require.Zero(t, p.Addr())
}

// TestBalancerOfNode checks that a Peer without a Balancer of its own has that of the node, one
// that has it does not.
func TestBalancerOfNode(t *testing.T) {
	t.Parallel()
	who := qs.Define[int, int]("test/balanced", qs.Idempotent())
	var addrs []string
	for i := range 3 {
		s := server(t, qs.Config{}, func(n *qs.Node) {
			who.Handle(n, func(context.Context, int) (int, error) { return i, nil })
		})
		addrs = append(addrs, s.Addr().String())
	}
	answers := func(n *qs.Node, o qs.PeerOptions) (got [3]int) {
		to, err := n.PeerWith(testContext(t), o, addrs...)
		require.NoError(t, err)
		for range 9 {
			i, err := who.Call(testContext(t), to, 0)
			require.NoError(t, err)
			got[i]++
		}
		return got
	}
	n := open(t, "tcp://", qs.Config{Balancer: qs.RoundRobin()})
	require.Equal(t, [3]int{3, 3, 3}, answers(n, qs.PeerOptions{}))
	require.Equal(t, [3]int{0, 0, 9}, answers(n, qs.PeerOptions{Balancer: lastBalancer{}}))
	require.Equal(t, [3]int{9, 0, 0}, answers(open(t, "tcp://", qs.Config{}), qs.PeerOptions{}))
}

// lastBalancer is a Balancer that takes the last address.
type lastBalancer struct{}

func (lastBalancer) Pick(_ *qs.Call, all []qs.Candidate) int { return len(all) - 1 }
