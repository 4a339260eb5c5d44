package qs_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A probe calls a function of the test when it is encoded and when it is decoded.
type probe string

var probes sync.Map // probe: func(at string)

func (p probe) at(what string) {
	if f, ok := probes.Load(p); ok {
		f.(func(string))(what)
	}
}

func (p probe) MarshalBinary() ([]byte, error) { p.at("encoding"); return []byte(p), nil }
func (p *probe) UnmarshalBinary(b []byte) error {
	*p = probe(b)
	p.at("decoding")
	return nil
}

type probed struct{ P probe }

var probing = qs.Define[probed, probed]("test/probing", qs.Idempotent())

// TestFutureEndedAtEachPoint checks that whenever a Future is canceled, abandoned or withdrawn,
// between Go and its end, the call ends, and its error, its fate and the result of Withdraw are
// true.
func TestFutureEndedAtEachPoint(t *testing.T) {
	t.Parallel()
	verbs := map[string]func(*qs.Future[probed], context.Context) hg.WithdrawResult{
		"cancel":   func(f *qs.Future[probed], _ context.Context) hg.WithdrawResult { f.Cancel(); return hg.Withdrawn },
		"abandon":  func(f *qs.Future[probed], _ context.Context) hg.WithdrawResult { f.Abandon(); return hg.Withdrawn },
		"withdraw": (*qs.Future[probed]).Withdraw,
	}
	for _, c := range []struct {
		at     string
		end    error
		fate   hg.Fate
		result hg.WithdrawResult
	}{
		{"go", qs.ErrCanceled, qs.NotRun, hg.Withdrawn},
		{"outside", qs.ErrCanceled, qs.NotRun, hg.Withdrawn},
		{"inside", qs.ErrCanceled, qs.NotRun, hg.Withdrawn},
		{"encoding", qs.ErrCanceled, qs.NotRun, hg.Withdrawn},
		{"running", qs.ErrCanceled, qs.MaybeRan, hg.TooLate},
		{"refused", qs.ErrCanceled, qs.NotRun, hg.Withdrawn}, // and the pause before the next attempt has begun
		{"lost", qs.ErrCanceled, qs.MaybeRan, hg.Indeterminate},
		{"encoding again", qs.ErrCanceled, qs.MaybeRan, hg.Indeterminate},
		{"decoding", nil, qs.Ran, hg.TooLate},
		{"ended", nil, qs.Ran, hg.TooLate},
	} {
		for verb, take := range verbs {
			t.Run(c.at+"/"+verb, func(t *testing.T) {
				w := sim.NewWorld(sim.Config{Seed: 1})
				defer w.Close()
				serving, stop := context.WithCancel(context.Background())
				id := probe(t.Name())
				var reached func(at string)
				ran := 0
				w.Go("server", func() {
					n := simulated(t, w, "sim://server", qs.Config{ShutdownTimeout: -1})
					probing.Handle(n, func(ctx context.Context, in probed) (probed, error) {
						switch c.at {
						case "refused":
							n.Go(func() { w.Sleep(10 * time.Millisecond); reached("refused") })
							return in, qs.Refuse(qs.ErrExhausted)
						case "lost", "encoding again":
							ran++
							w.Node("server").Crash()
							w.Sleep(time.Second)
						case "decoding", "ended":
							ran++
							return in, nil
						}
						ran++
						reached("running")
						return in, n.Sleep(ctx, time.Hour)
					})
					_ = n.Serve(serving)
				})
				w.Go("client", func() {
					defer stop()
					w.Sleep(time.Millisecond)
					at := func(at string) qs.Interceptor {
						return func(ctx context.Context, c *qs.Call, next func(context.Context) error) error {
							reached(at)
							if at == "inside" { // the end of ctx does not reach the attempt, and is not needed
								ctx = context.WithoutCancel(ctx)
							}
							err := next(ctx)
							if at == "inside" && err != nil {
								reached("lost")
							}
							return err
						}
					}
					n := simulated(t, w, "sim://", qs.Config{ClientInterceptors: []qs.Interceptor{at("outside"), qs.Retry(qs.RetryPolicy{Backoff: time.Minute}), at("inside")}})
					defer n.Close()
					ctx, cancel := n.WithTimeout(context.Background(), 10*time.Minute)
					defer cancel()
					to, err := n.Peer(ctx, "sim://server")
					require.NoError(t, err)
					var f *qs.Future[probed]
					result, taken := hg.NotSupported, false
					act := func() { result, taken = take(f, ctx), true }
					once, seen := false, map[string]int{}
					reached = func(now string) {
						switch seen[now]++; {
						case now == "encoding" && seen[now] == 2:
							now = "encoding again"
						case now == "decoding" && seen[now] == 1:
							now = "decoding at the target"
						}
						if now != c.at || once {
							return
						}
						once = true
						if verb == "withdraw" { // it waits, so it is a coroutine's
							n.Go(act)
							_ = n.Sleep(context.Background(), time.Millisecond)
							return
						}
						act()
					}
					probes.Store(id, reached)
					defer probes.Delete(id)
					f = probing.Go(context.Background(), to, probed{id})
					reached("go")
					if c.at == "ended" {
						_, err := f.Wait(ctx)
						require.NoError(t, err)
						reached("ended")
					}
					if verb == "withdraw" && c.at == "running" { // the process continues
						_ = n.Sleep(ctx, time.Second)
						f.Abandon()
					}
					_, err = f.Wait(ctx)
					require.NoError(t, ctx.Err(), "the call has not ended: %v", n.HG().Calls())
					_ = n.Sleep(ctx, time.Second)
					require.True(t, taken)
					if c.end == nil {
						require.NoError(t, err)
					} else {
						require.ErrorIs(t, err, c.end)
						require.ErrorIs(t, err, context.Canceled)
					}
					require.Equal(t, c.fate, qs.FateOf(err), "%v", err)
					if verb == "withdraw" {
						require.Equal(t, c.result, result, "%v", err)
					}
					require.Equal(t, c.fate == qs.NotRun, ran == 0)
				})
				require.NoError(t, w.Run(2*time.Hour))
			})
		}
	}
}

// TestFutureEndedAtRandom checks the same at random moments, over every transport.
func TestFutureEndedAtRandom(t *testing.T) {
	t.Parallel()
	listen := map[string]string{"tcp": "tcp://127.0.0.1:0", "udp": "udp://127.0.0.1:0"}
	if runtime.GOOS == "linux" {
		listen["sm"] = "sm://*"
	}
	for name, addr := range listen {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed := rand.Uint64()
			t.Log("seed", seed)
			draw := rand.New(rand.NewPCG(seed, 0))
			var ran sync.Map
			wait := qs.Define[int, int]("test/wait", qs.Idempotent())
			s := serverAt(t, addr, qs.Config{}, func(n *qs.Node) {
				wait.Handle(n, func(ctx context.Context, i int) (int, error) {
					ran.Store(i, true)
					<-ctx.Done()
					return i, ctx.Err()
				})
			})
			twice := func(ctx context.Context, _ *qs.Call, next func(context.Context) error) error {
				_ = next(ctx)
				return next(ctx)
			}
			n := open(t, name+"://", qs.Config{ClientInterceptors: []qs.Interceptor{qs.Retry(qs.RetryPolicy{}), twice}})
			to := peer(t, n, s.Addr().String())
			ctx := testContext(t)
			for i := range long.Or(150, 500) {
				f := wait.Go(context.Background(), to, i)
				for range draw.IntN(200) {
					runtime.Gosched()
				}
				result := hg.TooLate
				switch draw.IntN(3) {
				case 0:
					f.Cancel()
				case 1:
					f.Abandon()
				default:
					if result = f.Withdraw(ctx); result == hg.TooLate {
						f.Abandon()
					}
				}
				_, err := f.Wait(ctx)
				require.NoError(t, ctx.Err(), "call %d of seed %d has not ended: %v", i, seed, n.HG().Calls())
				require.ErrorIs(t, err, qs.ErrCanceled)
				require.True(t, errors.Is(err, context.Canceled) && !errors.Is(err, hg.ErrRemote), "%v", err)
				_, did := ran.Load(i)
				require.False(t, did && (qs.FateOf(err) == qs.NotRun || result == hg.Withdrawn), "call %d of seed %d ran: %v, %v", i, seed, result, err)
			}
		})
	}
}

// TestDeadlineOfHandler checks that a handler that returns the error of its ctx does not change the
// caller's error, which is its own deadline.
func TestDeadlineOfHandler(t *testing.T) {
	t.Parallel()
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		upper.Handle(n, func(ctx context.Context, s string) (string, error) {
			<-ctx.Done()
			return "", ctx.Err()
		})
	})
	for i := range long.Or(100, 500) {
		ctx, stop := context.WithTimeout(context.Background(), time.Duration(300+5*i)*time.Microsecond)
		_, err := upper.Call(ctx, to, "x")
		stop()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, qs.ErrTimeout)
		require.NotErrorIs(t, err, hg.ErrRemote)
	}
}
