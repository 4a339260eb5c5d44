package qs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A workload is all kinds of work between processes: everything that can wait at a limit.
type workload struct {
	echo   *qs.Method[[]byte, []byte]
	back   *qs.Method[string, int]
	put    *qs.Method[qs.Source, int]
	get    *qs.Method[loadGet, int]
	rows   *qs.Stream[loadRows, []byte]
	pause  func(n *qs.Node, ctx context.Context) // in each handler
	failed func(kind string, err error)
	left   atomic.Int64 // operations that have not ended
	done   map[string]int
	mu     sync.Mutex // guards done
}

type (
	loadGet struct {
		N  int
		To qs.Sink
	}
	loadRows struct{ N, Size int }
)

// loadLong is a little more than the longest body of a workload.
const loadLong = 200_000

func newWorkload(name string, opts ...qs.Option) *workload {
	return &workload{
		echo: qs.Define[[]byte, []byte](name+"/echo", opts...), back: qs.Define[string, int](name+"/back", opts...),
		put: qs.Define[qs.Source, int](name+"/put", opts...), get: qs.Define[loadGet, int](name+"/get", opts...),
		rows: qs.DefineStream[loadRows, []byte](name+"/rows", opts...), done: map[string]int{},
	}
}

func (l *workload) serve(n *qs.Node) {
	l.echo.Handle(n, func(ctx context.Context, in []byte) ([]byte, error) {
		l.pause(n, ctx)
		return in, nil
	})
	l.back.Handle(n, func(ctx context.Context, to string) (int, error) {
		l.pause(n, ctx)
		p, err := n.Peer(ctx, to)
		if err != nil {
			return 0, err
		}
		out, err := l.echo.Call(ctx, p, make([]byte, 100))
		return len(out), err
	})
	l.put.Handle(n, func(ctx context.Context, in qs.Source) (int, error) {
		l.pause(n, ctx)
		got, err := io.Copy(io.Discard, in.Reader(ctx))
		return int(got), err
	})
	l.get.Handle(n, func(ctx context.Context, in loadGet) (int, error) {
		l.pause(n, ctx)
		return in.To.Writer(ctx).Write(make([]byte, in.N))
	})
	l.rows.Handle(n, func(ctx context.Context, in loadRows, send func([]byte) error) error {
		for range in.N {
			l.pause(n, ctx)
			if err := send(make([]byte, in.Size)); err != nil {
				return err
			}
		}
		return nil
	})
}

// kinds lists the kinds of work: each does one operation, and returns its error, also if the data
// that arrived is wrong.
func (l *workload) kinds() map[string]func(ctx context.Context, n *qs.Node, to qs.Peer) error {
	all := func(got, want int, err error) error {
		if err == nil && got != want {
			return fmt.Errorf("got %d bytes or items, want %d", got, want)
		}
		return err
	}
	stream := func(ctx context.Context, to qs.Peer, n, size int) error {
		got := 0
		for item, err := range l.rows.Call(ctx, to, loadRows{n, size}) {
			if err != nil {
				return err
			}
			got += len(item)
		}
		return all(got, n*size, nil)
	}
	const long = loadLong - 50_000
	return map[string]func(ctx context.Context, n *qs.Node, to qs.Peer) error{
		"call": func(ctx context.Context, _ *qs.Node, to qs.Peer) error {
			out, err := l.echo.Call(ctx, to, make([]byte, 100))
			return all(len(out), 100, err)
		},
		"future": func(ctx context.Context, _ *qs.Node, to qs.Peer) error {
			out, err := l.echo.Go(ctx, to, make([]byte, 100)).Wait(ctx)
			return all(len(out), 100, err)
		},
		"long call": func(ctx context.Context, _ *qs.Node, to qs.Peer) error {
			out, err := l.echo.Call(ctx, to, make([]byte, long))
			return all(len(out), long, err)
		},
		"call back": func(ctx context.Context, n *qs.Node, to qs.Peer) error {
			out, err := l.back.Call(ctx, to, n.Addr().String())
			return all(out, 100, err)
		},
		"stream":             func(ctx context.Context, _ *qs.Node, to qs.Peer) error { return stream(ctx, to, 15, 16<<10) },
		"stream, long items": func(ctx context.Context, _ *qs.Node, to qs.Peer) error { return stream(ctx, to, 6, long) },
		"from": func(ctx context.Context, _ *qs.Node, to qs.Peer) error {
			got, err := l.put.Call(ctx, to, qs.Reader(bytes.NewReader(make([]byte, long))))
			return all(got, long, err)
		},
		"lend": func(ctx context.Context, _ *qs.Node, to qs.Peer) error {
			got, err := l.put.Call(ctx, to, qs.Bytes(make([]byte, long)))
			return all(got, long, err)
		},
		"into": func(ctx context.Context, _ *qs.Node, to qs.Peer) error {
			var into bytes.Buffer
			_, err := l.get.Call(ctx, to, loadGet{long, qs.Writer(&into)})
			return all(into.Len(), long, err)
		},
		"fill": func(ctx context.Context, _ *qs.Node, to qs.Peer) error {
			got, err := l.get.Call(ctx, to, loadGet{long, qs.Buffer(make([]byte, long))})
			return all(got, long, err)
		},
		"ping": func(ctx context.Context, n *qs.Node, to qs.Peer) error {
			_, err := to.Ping(ctx)
			return err
		},
	}
}

// A limit is a setting at which something waits, or is refused with one of these codes.
type limit struct {
	name    string
	set     func(cfg *qs.Config, v int)
	opts    func(v int) []qs.Option // of the methods; nil for none
	refuses []error
	most    bool // it bounds handlers: there are no calls back, since these wait for another one
}

var limits = []limit{
	{"MaxActive", func(cfg *qs.Config, v int) { cfg.HG.MaxActive = v }, nil, nil, true},
	{"MaxActivePerPeer", func(cfg *qs.Config, v int) { cfg.HG.MaxActivePerPeer = v }, nil, nil, true},
	{"Config.MaxConcurrent", func(cfg *qs.Config, v int) { cfg.MaxConcurrent = v }, nil, nil, true},
	{"MaxConcurrent", nil, func(v int) []qs.Option { return []qs.Option{qs.MaxConcurrent(v), qs.MaxQueue(1000)} }, nil, true},
	{"MaxQueue", nil, func(v int) []qs.Option { return []qs.Option{qs.MaxConcurrent(2), qs.MaxQueue(v)} }, []error{qs.ErrExhausted}, true},
	{"Envelopes", func(cfg *qs.Config, v int) { cfg.HG.NA.Envelopes = v }, nil, nil, false},
	{"Envelopes and MaxActive", func(cfg *qs.Config, v int) { cfg.HG.NA.Envelopes, cfg.HG.MaxActive = v, v }, nil, nil, true},
	{"SendQueue", func(cfg *qs.Config, v int) { cfg.HG.NA.Envelopes, cfg.HG.NA.SendQueue = 2, v }, nil, []error{hg.ErrNoCredit}, false},
	{"OnNoCredit", func(cfg *qs.Config, v int) {
		cfg.HG.NA.Envelopes, cfg.HG.NA.OnNoCredit, cfg.HG.NA.Reserve = v, na.Fail, na.HonestReserve
	}, nil, []error{hg.ErrNoCredit}, false},
	{"Room", func(cfg *qs.Config, v int) { cfg.HG.NA.Room = int64(v) }, nil, nil, false},
	{"Budget", func(cfg *qs.Config, v int) { // envelopes leave some of it to streams
		cfg.HG.NA.Envelopes, cfg.HG.NA.Budget = v, na.GuaranteedBytes(2, v, 4<<10)+12*na.StreamReserve
	}, nil, []error{qs.ErrUnreachable, na.ErrNoMemory, hg.ErrExhausted}, false},
	{"MaxPeers", func(cfg *qs.Config, v int) { cfg.MaxPeers = v }, nil, []error{qs.ErrUnreachable, na.ErrNoMemory}, false},
	{"MaxLent", func(cfg *qs.Config, v int) { cfg.HG.MaxLent, cfg.HG.NA.Room = int64(v)*loadLong, 1 }, nil, []error{hg.ErrAgain, hg.ErrRemote}, false},
	{"MaxPulled", func(cfg *qs.Config, v int) { cfg.HG.MaxPulled, cfg.HG.NA.Room = int64(v)*loadLong, 1 }, nil, []error{hg.ErrAgain, hg.ErrRemote}, false},
}

// begin has n do each kind of work so many times, in an order that rng chooses.
func (l *workload) begin(rng *rand.Rand, ctx context.Context, n *qs.Node, to qs.Peer, times int, without string) {
	kinds := l.kinds()
	var order []string
	for kind := range kinds {
		for range times {
			if kind != without {
				order = append(order, kind)
			}
		}
	}
	slices.Sort(order)
	rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	l.left.Add(int64(len(order)))
	for _, kind := range order {
		n.Go(func() {
			defer l.left.Add(-1)
			if err := kinds[kind](ctx, n, to); err != nil {
				l.failed(kind, err)
				return
			}
			l.mu.Lock()
			l.done[kind]++
			l.mu.Unlock()
		})
	}
}

// isIdle reports whether nothing of the load is left at a node.
func isIdle(n *qs.Node) bool {
	st := n.HG().Stats()
	return st.Active == 0 && st.Waiting == 0 && st.Lent == 0 && st.Pulled == 0 && st.NA.Queued == 0 && st.NA.Leases == 0 && n.Streams() == 0
}

// TestLimits checks that where a limit is 1 or 2, and every kind of work is in flight in both
// directions, there is no deadlock: all ends, or is refused for that limit.
func TestLimits(t *testing.T) {
	t.Parallel()
	oneAtATime(t)
	for _, lim := range limits {
		for _, v := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s %d", lim.name, v), func(t *testing.T) {
				for seed := range uint64(long.Or(2, 50)) {
					testLimit(t, lim, v, seed)
				}
			})
		}
	}
}

func testLimit(t *testing.T, lim limit, v int, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, uint64(v)))
	w := sim.NewWorld(sim.Config{Seed: seed, Faults: sim.Faults{Jitter: time.Millisecond}})
	defer w.Close()
	var cfg qs.Config
	if lim.set != nil {
		lim.set(&cfg, v)
	}
	var opts []qs.Option
	if lim.opts != nil {
		opts = lim.opts(v)
	}
	l := newWorkload("limits", opts...)
	l.pause = func(n *qs.Node, ctx context.Context) { _ = n.Sleep(ctx, time.Millisecond) }
	l.failed = func(kind string, err error) {
		if errors.Is(err, qs.ErrTimeout) || errors.Is(err, context.DeadlineExceeded) || !slices.ContainsFunc(lim.refuses, func(code error) bool { return errors.Is(err, code) }) {
			t.Errorf("seed %d, %s: %v", seed, kind, err)
		}
	}
	without := ""
	if lim.most {
		without = "call back"
	}
	names := []string{"a", "b", "c"}
	nodes := make([]*qs.Node, len(names))
	serving, stop := context.WithCancel(context.Background())
	defer stop()
	for i, name := range names {
		w.Node(name).Go(func() {
			nodes[i] = simulated(t, w, "sim://"+name, cfg)
			l.serve(nodes[i])
			_ = nodes[i].Serve(serving)
			_ = nodes[i].Close()
		})
	}
	begun := 0
	for i, name := range names {
		w.Node(name).Go(func() {
			w.Sleep(time.Millisecond) // all are open
			n := nodes[i]
			ctx, cancel := n.WithTimeout(context.Background(), 5*time.Minute)
			defer cancel()
			for j, other := range names {
				if other == "c" || i == j { // c gets no calls
					continue
				}
				to, err := n.Peer(ctx, "sim://"+other)
				if err != nil {
					t.Errorf("seed %d: %v", seed, err)
				}
				l.begin(rng, ctx, n, to, 2, without)
			}
			begun++
			for begun < len(names) || l.left.Load() > 0 {
				w.Sleep(10 * time.Millisecond)
			}
			for range 100 {
				if isIdle(n) {
					break
				}
				w.Sleep(100 * time.Millisecond)
			}
			if !isIdle(n) {
				t.Errorf("seed %d: node %s: something is left: %+v", seed, name, n.HG().Stats())
			}
			begun++
			for begun < 2*len(names) {
				w.Sleep(10 * time.Millisecond)
			}
			stop()
		})
	}
	if err := w.Run(10 * time.Minute); err != nil {
		t.Errorf("seed %d: %v", seed, err)
	}
	for _, kind := range []string{"ping", "stream", "from", "into"} {
		if l.done[kind] == 0 {
			t.Errorf("seed %d: no %s has succeeded", seed, kind)
		}
	}
}

// TestDefaultLimits checks the same over tcp with the default limits, each of them reached.
func TestDefaultLimits(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	l := newWorkload("limits")
	reached := newHandlerBarrier(2 * 128)
	l.pause = func(_ *qs.Node, ctx context.Context) { _ = reached.enter(ctx) }
	l.failed = func(kind string, err error) { t.Errorf("seed %d, %s: %v", seed, kind, err) }
	cfg := qs.Config{}
	nodes := []*qs.Node{server(t, cfg, l.serve), server(t, cfg, l.serve)}
	ctx := shortContext(t)
	for i, n := range nodes {
		l.begin(rng, ctx, n, peer(t, n, nodes[1-i].Addr().String()), 20, "")
	}
	reached.wait(ctx, t)
	for _, n := range nodes {
		require.Eventually(t, func() bool { st := n.HG().Stats(); return st.Active == 128 && st.Waiting > 0 }, time.Minute, time.Millisecond)
	}
	for i, n := range nodes {
		isAnswered(t, ctx, n, peer(t, n, nodes[1-i].Addr().String()))
	}
	close(reached.open)
	require.Eventually(t, func() bool { return l.left.Load() == 0 && isIdle(nodes[0]) && isIdle(nodes[1]) }, time.Minute, time.Millisecond)
}

// TestLeasesBeyond checks that a stream continues when the calls of the same process hold all that
// may be lent to the peer, in number and in bytes, and those beyond are refused.
func TestLeasesBeyond(t *testing.T) {
	t.Parallel()
	const leases, bytes = 1024, 5000
	for _, most := range []int64{0, leases * bytes / 2} {
		c := newHandlerBarrier(128)
		cfg := qs.Config{}
		cfg.HG.MaxLent, cfg.HG.NA.Room = most, 1
		a, b := server(t, cfg, c.serve), server(t, cfg, c.serve)
		ab, ba := peer(t, a, b.Addr().String()), peer(t, b, a.Addr().String())
		ctx := shortContext(t)
		var all sync.WaitGroup
		var refused atomic.Int64
		items := 0 // without room they arrive by the reserve of the stream, one KiB at a time
		for _, err := range barrierItems.Call(ctx, ba, -8) {
			require.NoError(t, err)
			if items++; items > 1 {
				continue
			}
			for range leases + 300 {
				all.Go(func() {
					switch _, err := barrierKeep.Call(ctx, ab, make([]byte, bytes)); {
					case errors.Is(err, qs.ErrTimeout), strings.Contains(fmt.Sprint(err), "deadline"):
						assert.NoError(t, err)
					case errors.Is(err, hg.ErrAgain), errors.Is(err, hg.ErrRemote): // the target reports a number
						refused.Add(1)
					default:
						assert.NoError(t, err)
					}
				})
			}
			c.wait(ctx, t)
			require.Eventually(t, func() bool { // all wait, but those that are refused; of these some already, if it is for MaxLent
				st := a.HG().Stats()
				return (most == 0 || refused.Load() > 0) && refused.Load()+int64(st.NA.Queued) >= leases
			}, time.Minute, time.Millisecond)
			isAnswered(t, ctx, a, ab)
		}
		require.Equal(t, 8, items)
		close(c.open)
		all.Wait()
		require.Positive(t, refused.Load())
	}
}
