package qs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

type (
	rowsIn struct {
		N    int    // items,
		Size int    // of so many bytes
		Big  int    // that with this number has 200,000
		End  string // how the handler ends after them
	}
	row struct {
		Key  int
		Text []byte
	}
)

var rows = qs.DefineStream[rowsIn, row]("test/rows", qs.Idempotent())

// A rowSource serves rows, and records how its handlers have ended.
type rowSource struct {
	sent, begun, ended, over atomic.Int64 // over: with a context that had ended
}

func (s *rowSource) serve(n *qs.Node) {
	rows.Handle(n, func(ctx context.Context, in rowsIn, send func(row) error) error {
		s.begun.Add(1)
		defer s.ended.Add(1)
		for i := range in.N {
			size := in.Size
			if i == in.Big && i > 0 {
				size = 200_000
			}
			if err := send(row{i, bytes.Repeat([]byte{byte(i)}, size)}); err != nil {
				if ctx.Err() == nil {
					return fmt.Errorf("send fails, but the request continues: %w", err)
				}
				s.over.Add(1)
				return err
			}
			s.sent.Add(1)
		}
		switch in.End {
		case "error":
			return hg.WithDetail(qs.Errorf(qs.ErrNotFound, "no more"), "page 7")
		case "panic":
			panic("oh")
		case "goexit":
			runtime.Goexit()
		case "hang":
			<-ctx.Done()
			s.over.Add(1)
			return ctx.Err()
		}
		return nil
	})
}

// waitUntilIdle waits until no handler runs, and nodes have no stream.
func (s *rowSource) waitUntilIdle(t testing.TB, nodes ...*qs.Node) {
	t.Helper()
	ctx := testContext(t)
	for s.left(nodes...) > 0 {
		require.NoError(t, ctx.Err(), "a handler, or a stream, has not ended")
		runtime.Gosched()
	}
}

func (s *rowSource) left(nodes ...*qs.Node) (n int) {
	n = int(s.begun.Load() - s.ended.Load())
	for _, node := range nodes {
		n += node.Streams()
	}
	return n
}

// takeAll takes all items, and returns how many there were, and the error.
func takeAll(t testing.TB, in rowsIn, all iter.Seq2[row, error]) (n int, err error) {
	t.Helper()
	for r, e := range all {
		require.NoError(t, err, "an item arrives behind an error")
		if err = e; err == nil {
			want := in.Size
			if n == in.Big && n > 0 {
				want = 200_000
			}
			if r.Key != n || len(r.Text) != want || want > 0 && r.Text[want-1] != byte(n) {
				require.Fail(t, "wrong item", "got %d with %d bytes, want %d with %d", r.Key, len(r.Text), n, want)
			}
			n++
		}
	}
	return n, err
}

// quietConfig has panics of handlers not be logged.
func quietConfig() (cfg qs.Config) {
	cfg.HG.Logger = slog.New(slog.DiscardHandler)
	return cfg
}

// streamPair is a client and a server over one transport.
func streamPair(t *testing.T, addr string, cfg qs.Config, s *rowSource) (*qs.Node, *qs.Node, qs.Peer) {
	server := serverAt(t, addr, quietConfig(), s.serve)
	scheme, _, _ := strings.Cut(addr, "://")
	client := open(t, scheme+"://", cfg)
	return client, server, peer(t, client, server.Addr().String())
}

func eachTransport(t *testing.T, f func(t *testing.T, addr string)) {
	for _, addr := range []string{"tcp://127.0.0.1:0", "udp://127.0.0.1:0", "sm://*"} {
		scheme, _, _ := strings.Cut(addr, "://")
		if scheme == "sm" && runtime.GOOS != "linux" {
			continue
		}
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			f(t, addr)
		})
	}
}

// TestStream checks that items arrive in order, each once, whatever their number and size, and then
// the end, or the error of the handler with its code and detail.
func TestStream(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, addr string) {
		s := &rowSource{}
		c, server, to := streamPair(t, addr, qs.Config{}, s)
		for _, in := range []rowsIn{{}, {N: 1}, {N: 10, Size: 100}, {N: 50_000, Size: 30}, {N: 300, Size: 10_000, Big: 100}, {N: 3, Size: 65_536, Big: 2}} {
			for _, end := range []string{"", "error", "panic", "goexit"} {
				in.End = end
				if (end != "" || raceflag.Enabled) && !long.On {
					in.N = min(in.N, 3000)
				}
				n, err := takeAll(t, in, rows.Call(testContext(t), to, in))
				if end == "" {
					require.NoError(t, err)
					require.Equal(t, in.N, n)
					continue
				}
				require.ErrorIs(t, err, hg.ErrRemote)
				require.Equal(t, qs.Ran, qs.FateOf(err))
				require.Equal(t, in.N, n, "the error is behind the items")
				if end == "error" {
					require.ErrorIs(t, err, qs.ErrNotFound)
					remote, ok := hg.RemoteOf(err)
					require.True(t, ok)
					var page string
					require.NoError(t, remote.Detail(&page))
					require.Equal(t, "page 7", page)
				} else {
					require.ErrorIs(t, err, hg.ErrPanic)
				}
			}
		}
		s.waitUntilIdle(t, c, server)
	})
}

// TestStreamIsPrompt checks that an item arrives at once when the caller waits for one, although no
// message is full.
func TestStreamIsPrompt(t *testing.T) {
	t.Parallel()
	beats := qs.DefineStream[struct{}, int]("test/beats")
	next := make(chan struct{})
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		beats.Handle(n, func(ctx context.Context, _ struct{}, send func(int) error) error {
			for i := range 100 {
				if err := send(i); err != nil {
					return err
				}
				<-next
			}
			return nil
		})
	})
	all := beats.Call(testContext(t), to, struct{}{})
	for range 2 { // each loop is a call
		n := 0
		for i, err := range all {
			require.NoError(t, err)
			require.Equal(t, n, i)
			n++
			next <- struct{}{}
		}
		require.Equal(t, 100, n)
	}
}

// TestStreamEnds checks that however a loop ends, at whichever item, the context of the handler
// ends, and nothing is left.
func TestStreamEnds(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, addr string) {
		s := &rowSource{}
		c, server, to := streamPair(t, addr, qs.Config{}, s)
		in := rowsIn{N: 1_000_000, Size: 1000}
		end := errors.New("my time is up")
		stride := long.Or(7, 1) // not a divisor of how many items a message takes
		if raceflag.Enabled {   // which takes ten times as long
			stride = 19
		}
		for step := 0; step < long.Or(300, 2000); step += stride {
			for _, how := range []string{"break", "cancel", "deadline", "panic"} {
				if how == "deadline" && step/stride%10 > 0 {
					continue
				}
				ctx, cancel := context.WithCancelCause(testContext(t))
				if how == "deadline" {
					var stop context.CancelFunc
					ctx, stop = context.WithTimeout(ctx, time.Duration(step)*10*time.Microsecond)
					defer stop()
				}
				n, last := 0, error(nil)
				func() {
					defer func() { require.Equal(t, how == "panic", recover() != nil) }()
					for r, err := range rows.Call(ctx, to, in) {
						if last = err; err != nil {
							return
						}
						require.Equal(t, n, r.Key)
						if n++; n > step && how != "deadline" {
							switch how {
							case "break":
								return
							case "panic":
								panic(end)
							}
							cancel(end)
						}
					}
				}()
				switch how {
				case "cancel":
					require.ErrorIs(t, last, qs.ErrCanceled)
					require.ErrorIs(t, last, end)
					require.Equal(t, step+1, n, "the loop continues when its context has ended")
				case "deadline":
					require.ErrorIs(t, last, context.DeadlineExceeded)
				default:
					require.Equal(t, step+1, n)
				}
				cancel(nil)
			}
		}
		s.waitUntilIdle(t, c, server)
		for limit := testContext(t); s.begun.Load() != s.over.Load(); pause(time.Millisecond) {
			require.NoError(t, limit.Err(), "a handler that did not see its request end")
		}
	})
}

// TestStreamIsBounded checks that a caller that stops reading holds the handler back: the two
// processes together have no more than their windows of items.
func TestStreamIsBounded(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, addr string) {
		s := &rowSource{}
		_, _, to := streamPair(t, addr, qs.Config{}, s)
		const size, batch, unsent, window = 1000, 32 << 10, 64 << 10, 256 << 10
		for range rows.Call(testContext(t), to, rowsIn{N: 1_000_000, Size: size}) {
			ctx := testContext(t)
			for s.sent.Load() < unsent/size { // bytes that the buffer of the handler takes while the first item is not read
				require.NoError(t, ctx.Err())
				runtime.Gosched()
			}
			pause(50 * time.Millisecond)
			break
		}
		s.waitUntilIdle(t)
		require.LessOrEqual(t, s.sent.Load(), int64((batch+unsent+window)/size))
	})
}

// pause is how long the loop of a caller does nothing.
func pause(d time.Duration) { <-time.NewTimer(d).C }

// TestStreamRetry checks that Retry repeats a stream of which no item has arrived, and no other,
// whether the loop has got it yet or not.
func TestStreamRetry(t *testing.T) {
	t.Parallel()
	for i := range 4 {
		given, pause := i%2, []time.Duration{-1, 10 * time.Millisecond}[i/2] // in a pause the loop gets the items that have arrived
		var attempts atomic.Int32
		broken := qs.DefineStream[int, int]("test/broken", qs.Idempotent())
		var server *qs.Node
		serve := func(n *qs.Node) {
			broken.Handle(n, func(ctx context.Context, given int, send func(int) error) error {
				if attempts.Add(1) > 1 {
					return send(7)
				}
				for range given {
					if err := send(6); err != nil {
						return err
					}
				}
				return qs.Refuse(qs.Errorf(qs.ErrUnavailable, "not now"))
			})
		}
		server = serverAt(t, "tcp://127.0.0.1:0", qs.Config{}, serve)
		c := open(t, "tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{qs.Retry(qs.RetryPolicy{Backoff: pause})}})
		var got []int
		var last error
		for i, err := range broken.Call(testContext(t), peer(t, c, server.Addr().String()), given) {
			if last = err; err == nil {
				got = append(got, i)
			}
		}
		if given == 0 {
			require.NoError(t, last)
			require.Equal(t, []int{7}, got)
			require.EqualValues(t, 2, attempts.Load())
		} else {
			require.ErrorIs(t, last, qs.ErrUnavailable)
			require.Equal(t, []int{6}, got)
			require.EqualValues(t, 1, attempts.Load())
		}
	}
}

// TestStreamMisuse checks that an invalid stream is refused when it is defined.
func TestStreamMisuse(t *testing.T) {
	t.Parallel()
	require.PanicsWithValue(t, "qs: stream test/sink has a Sink in its input; use Define, or send items",
		func() { qs.DefineStream[getIn, int]("test/sink") })
	require.PanicsWithValue(t, "qs: stream test/inline has the option Inline, but its handler blocks",
		func() { qs.DefineStream[int, int]("test/inline", qs.Inline()) })
	s := qs.DefineStream[int, int]("test/late")
	later := make(chan func(int) error, 1)
	n, to := pair(t, qs.Config{}, func(n *qs.Node) {
		s.Handle(n, func(_ context.Context, _ int, send func(int) error) error {
			later <- send
			return nil
		})
	})
	for range s.Call(testContext(t), to, 1) {
		t.Fatal("an item from nowhere")
	}
	require.ErrorIs(t, (<-later)(1), qs.ErrClosed)
	for _, err := range s.Call(testContext(t), qs.Peer{}, 1) {
		require.ErrorIs(t, err, qs.ErrInvalid)
		require.Equal(t, qs.NotRun, qs.FateOf(err))
	}
	require.Zero(t, n.Streams())
}

// TestStreamWithSource checks that a Source is sent with a stream as with any other method.
func TestStreamWithSource(t *testing.T) {
	t.Parallel()
	words := qs.DefineStream[putIn, string]("test/words")
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		words.Handle(n, func(ctx context.Context, in putIn, send func(string) error) error {
			b := make([]byte, 5)
			if _, err := in.Body.Reader(ctx).Read(b); err != nil {
				return err
			}
			for _, c := range b {
				if err := send(string(c)); err != nil {
					return err
				}
			}
			return nil
		})
	})
	var got string
	for w, err := range words.Call(testContext(t), to, putIn{Body: qs.Bytes([]byte("hello"))}) {
		require.NoError(t, err)
		got += w
	}
	require.Equal(t, "hello", got)
}

// TestStreamSeeds checks in a simulated world that loses, cuts, stops and crashes that at any step
// no item arrives twice or out of order, the loop ends, the handler ends, and nothing is left.
func TestStreamSeeds(t *testing.T) {
	t.Parallel()
	oneAtATime(t)
	ended := map[string]int{}
	for seed := range uint64(long.Or(100, 1000)) {
		ended[runStreamSeed(t, seed)]++
	}
	t.Log(ended)
	for _, how := range []string{"all", "break", "cancel", "lost"} {
		require.Positive(t, ended[how], how)
	}
}

func runStreamSeed(t *testing.T, seed uint64) (how string) {
	rng := rand.New(rand.NewPCG(seed, 3))
	faults := sim.Faults{
		Jitter: time.Millisecond, Reset: 0.002, Corrupt: 0.001, Clog: 0.002, ClogFor: time.Second, Pause: 0.002, PauseFor: time.Second,
		Partition: 0.001, PartitionFor: 2 * time.Second, Stall: time.Millisecond, Silence: 0.3, Loss: 0.03,
	}
	w := sim.NewWorld(sim.Config{Seed: seed, Faults: faults.Draw(rng), Patience: -1})
	defer w.Close()
	s := &rowSource{}
	var server, client *qs.Node
	stop := func() {}
	w.Node("server").Go(func() {
		server = simulated(t, w, "sim://server", qs.Config{PeerTimeout: 500 * time.Millisecond})
		s.serve(server)
		var ctx context.Context
		ctx, stop = context.WithCancel(context.Background())
		_ = server.Serve(ctx)
		_ = server.Close()
	})
	in := rowsIn{N: rng.IntN(300), Size: 1 << rng.IntN(14)}
	step := rng.IntN(in.N + 1)
	act := []string{"", "break", "cancel", "crash", "pause", "slow"}[rng.IntN(6)]
	crashed := false
	w.Node("client").Go(func() {
		client = simulated(t, w, "sim://client", qs.Config{PeerTimeout: 500 * time.Millisecond})
		w.Sleep(time.Millisecond) // the server is open
		ctx, cancel := client.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		to, err := client.Peer(ctx, "sim://server")
		if err == nil {
			how = "all"
			n := 0
			for r, e := range rows.Call(ctx, to, in) {
				if e != nil {
					how, err = "lost", e
					if errors.Is(e, qs.ErrCanceled) {
						how = "cancel"
					}
					continue
				}
				if r.Key != n || len(r.Text) != in.Size {
					t.Errorf("seed %d: got item %d, want %d", seed, r.Key, n)
				}
				if n++; n != step {
					continue
				}
				if act == "break" {
					how = "break"
					break
				}
				switch act {
				case "cancel":
					cancel()
				case "crash":
					crashed = true
					w.Node("server").Crash()
				case "pause":
					w.Node("server").Pause(time.Duration(rng.Int64N(int64(2 * time.Second))))
				case "slow":
					w.Sleep(time.Duration(rng.Int64N(int64(2 * time.Second))))
				}
			}
			if how == "all" && n != in.N {
				t.Errorf("seed %d: got %d items and no error, want %d", seed, n, in.N)
			}
		}
		if how == "lost" && !errors.Is(err, qs.ErrPeerLost) && !errors.Is(err, qs.ErrUnreachable) && !errors.Is(err, qs.ErrTimeout) {
			t.Errorf("seed %d: %v", seed, err)
		}
		w.SetFaults(sim.Faults{})
		w.Heal()
		for client.Streams() > 0 || !crashed && s.left(server) > 0 { // else the world reports that it has not ended
			w.Sleep(10 * time.Millisecond)
		}
		_ = client.Close()
		stop()
	})
	if err := w.Run(5 * time.Minute); err != nil {
		t.Errorf("seed %d: %v", seed, err)
	}
	return how
}

// TestStreamHandlerCallsItsNode checks that a stream's handler that calls its own node takes no
// place that the call needs, wherever it began.
func TestStreamHandlerCallsItsNode(t *testing.T) {
	t.Parallel()
	calls, double := qs.DefineStream[int, int]("test/calls"), qs.Define[int, int]("test/doubles")
	_, to := pair(t, qs.Config{MaxConcurrent: 1}, func(n *qs.Node) {
		double.Handle(n, func(_ context.Context, i int) (int, error) { return 2 * i, nil })
		calls.Handle(n, func(ctx context.Context, i int, send func(int) error) error {
			self, err := n.Peer(ctx, n.Addr().String())
			if err != nil {
				return err
			}
			j, err := double.Call(ctx, self, i)
			if err != nil {
				return err
			}
			return send(j)
		})
	})
	for i := range 100 {
		for j, err := range calls.Call(testContext(t), to, i) {
			require.NoError(t, err)
			require.Equal(t, 2*i, j)
		}
	}
}

// TestStreamsHaveALimitOfTheirOwn checks that streams take no worker and no place: calls run at the
// same time as any number of them, and one beyond their own limit is refused at once.
func TestStreamsHaveALimitOfTheirOwn(t *testing.T) {
	t.Parallel()
	held, double := qs.DefineStream[int, int]("test/holds"), qs.Define[int, int]("test/doubles")
	cfg := qs.Config{MaxConcurrent: 1}
	cfg.HG.MaxActive, cfg.HG.MaxStreamsPerPeer = 1, 20
	_, to := pair(t, cfg, func(n *qs.Node) {
		held.Handle(n, func(ctx context.Context, i int, send func(int) error) error {
			if err := send(i); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		})
		double.Handle(n, func(_ context.Context, i int) (int, error) { return 2 * i, nil })
	})
	ctx, leave := context.WithCancel(testContext(t))
	defer leave()
	begun, ended := make(chan int), make(chan error)
	for i := range 20 {
		go func() {
			for item, err := range held.Call(ctx, to, i) {
				if err != nil {
					ended <- err
					return
				}
				begun <- item
			}
		}()
	}
	for range 20 {
		<-begun
	}
	four, err := double.Call(ctx, to, 2)
	require.NoError(t, err)
	require.Equal(t, 4, four)
	for _, err := range held.Call(ctx, to, 0) {
		require.ErrorIs(t, err, qs.ErrExhausted)
		require.ErrorContains(t, err, "limit of 20 open streams per peer reached")
		require.Equal(t, qs.NotRun, qs.FateOf(err))
	}
	leave()
	for range 20 {
		require.ErrorIs(t, <-ended, qs.ErrCanceled)
	}
}
