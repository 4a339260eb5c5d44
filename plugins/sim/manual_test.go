package sim_test

import (
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

func TestMessages(t *testing.T) {
	eachLevel(t, func(t *testing.T, cfg sim.Config) {
		w := sim.NewWorld(cfg)
		a, b := openTestNode(t, w, "sim://a"), openTestNode(t, w, "sim://b")
		recv := b.post(b.nctx.RecvUnexpected)
		require.NoError(t, a.send(b.addr(), 7, "hello").Err)
		r := b.wait(recv)
		require.NoError(t, r.Err)
		require.Equal(t, "hello", string(r.Envelope.Data))
		require.Equal(t, na.Tag(7), r.Tag)
		require.Equal(t, a.addr(), r.Addr.Named())

		buf := make([]byte, 16)
		answer := a.post(func(op *na.Op) error { return a.nctx.RecvExpected(op, b.addr(), 9, buf) })
		require.NoError(t, b.do(func(op *na.Op) error { return b.nctx.SendExpected(op, r.Addr, 9, []byte("there")) }).Err)
		got := a.wait(answer)
		require.NoError(t, got.Err)
		require.Equal(t, "there", string(buf[:got.N]))
		r.Envelope.Free()
		a.close()
		b.close()
	})
}

func TestOriginWithoutName(t *testing.T) {
	w := sim.NewWorld(sim.Config{})
	a, b := openTestNode(t, w, "sim://"), openTestNode(t, w, "sim://b")
	require.NoError(t, a.send(b.addr(), 1, "x").Err)
	r := b.recv()
	require.NoError(t, r.Err)
	buf := make([]byte, 8)
	answer := a.post(func(op *na.Op) error { return a.nctx.RecvExpected(op, b.addr(), 2, buf) })
	require.NoError(t, b.do(func(op *na.Op) error { return b.nctx.SendExpected(op, r.Addr, 2, []byte("y")) }).Err)
	require.NoError(t, a.wait(answer).Err)
	r.Envelope.Free()
	// It cannot be dialed: its name refers to the session that it has made.
	require.NoError(t, b.send(a.addr(), 1, "z").Err)
	r = a.recv()
	require.Equal(t, "z", string(r.Envelope.Data))
	r.Envelope.Free()
	c := openTestNode(t, w, "sim://c")
	require.ErrorIs(t, c.send(a.addr(), 1, "x").Err, na.ErrUnreachable)
	c.close()
	a.close()
	b.close()
}

func TestSelf(t *testing.T) {
	w := sim.NewWorld(sim.Config{})
	a := openTestNode(t, w, "sim://a")
	require.NoError(t, a.send(a.addr(), 1, "me").Err)
	r := a.recv()
	require.Equal(t, "me", string(r.Envelope.Data))
	r.Envelope.Free()
	a.close()
}

func TestContexts(t *testing.T) {
	w := sim.NewWorld(sim.Config{})
	a, b := openTestNode(t, w, "sim://a"), openTestNode(t, w, "sim://b")
	second, err := b.cls.NewContext()
	require.NoError(t, err)
	require.NoError(t, a.send(second.Self(), 1, "second").Err)
	b2 := &testNode{t: t, cls: b.cls, nctx: second}
	r := b2.recv()
	require.Equal(t, "second", string(r.Envelope.Data))
	r.Envelope.Free()
	third := a.send(b.addr().WithTarget(5), 1, "third")
	require.ErrorIs(t, third.Err, na.ErrUnreachable)
	require.Equal(t, na.NotRun, third.Fate)
}

func TestPutGet(t *testing.T) {
	sizes := [][2][]int{
		{{1}, {1}}, {{0, 5, 0}, {2, 3}}, {{1000, 1, 4000}, {5001}}, {{300 << 10, 7, 300 << 10}, {100, 600<<10 - 93}},
		{{5 << 20}, {1 << 20, 4 << 20}},
	}
	eachLevel(t, func(t *testing.T, cfg sim.Config) {
		w := sim.NewWorld(cfg)
		a, b := openTestNode(t, w, "sim://a"), openTestNode(t, w, "sim://b")
		for _, s := range sizes { // b is not driven: its peers are served nevertheless
			remote := b.mem(na.ReadWrite, 3, s[1]...)
			local := a.local(99, s[0]...)
			r := a.get(local, b.addr(), remote.Key())
			require.NoError(t, r.Err)
			require.Equal(t, local.Len(), r.N)
			requirePattern(t, local, 3)
			require.NoError(t, a.put(a.local(42, s[0]...), b.addr(), remote.Key()).Err)
			requirePattern(t, remote, 42)
		}
		a.close()
		b.close()
	})
}

func TestLookup(t *testing.T) {
	w := sim.NewWorld(sim.Config{Latency: time.Millisecond})
	a := openTestNode(t, w, "sim://a")
	r := a.do(func(op *na.Op) error { return a.nctx.Lookup(op, "sim://nobody#3") })
	require.NoError(t, r.Err, "a lookup resolves, it does not connect")
	require.Equal(t, "sim://nobody#3", r.Addr.String())
	require.Equal(t, 2*time.Millisecond, w.Now())
	require.ErrorIs(t, a.do(func(op *na.Op) error { return a.nctx.Lookup(op, "sim://what?") }).Err, na.ErrInvalid)
	require.ErrorIs(t, a.do(func(op *na.Op) error { return a.nctx.Lookup(op, "tcp://x:1") }).Err, na.ErrUnsupported)
}

func TestLookupCancel(t *testing.T) {
	var trace strings.Builder
	w := sim.NewWorld(sim.Config{Trace: &trace})
	a := openTestNode(t, w, "sim://a")
	o := a.post(func(op *na.Op) error { return a.nctx.Lookup(op, "sim://b") })
	o.op.Cancel()
	require.Equal(t, 1, a.nctx.Trigger(0), "without Progress")
	require.ErrorIs(t, o.Err, na.ErrCanceled)
	require.Zero(t, w.Now())
	require.ErrorIs(t, a.nctx.Progress(time.Second), na.ErrTimeout)
	require.Equal(t, 1, o.count)
	require.NotContains(t, trace.String(), "lookup", "it did not continue")
	require.NoError(t, a.do(func(op *na.Op) error { return a.nctx.Lookup(op, "sim://b") }).Err)
	require.Contains(t, trace.String(), "lookup")
}

func TestAddresses(t *testing.T) {
	w := sim.NewWorld(sim.Config{})
	a := openTestNode(t, w, "sim://a")
	_, err := na.Open("sim://a", na.Config{Plugins: []na.Plugin{w.Plugin()}})
	require.ErrorIs(t, err, na.ErrAddrInUse)
	_, err = na.Open("sim://a/b", na.Config{Plugins: []na.Plugin{w.Plugin()}})
	require.ErrorIs(t, err, na.ErrInvalid)
	a.close()
	openTestNode(t, w, "sim://a").close()
}

func TestUnreachable(t *testing.T) {
	w := sim.NewWorld(sim.Config{Latency: time.Millisecond})
	a := openTestNode(t, w, "sim://a")
	to, err := na.ParseAddr("sim://nobody")
	require.NoError(t, err)
	r := a.send(to, 1, "x")
	require.ErrorIs(t, r.Err, na.ErrUnreachable)
	require.Equal(t, na.NotRun, r.Fate)
	require.Equal(t, 2*time.Millisecond, w.Now(), "a round trip")
}

// TestDialAfterSilence checks that a program may be idle for long before it sends for the first
// time.
func TestDialAfterSilence(t *testing.T) {
	w := sim.NewWorld(sim.Config{})
	a, b := openTestNode(t, w, "sim://a"), openTestNode(t, w, "sim://b")
	w.Sleep(time.Hour)
	require.NoError(t, a.send(b.addr(), 1, "x").Err)
	require.Less(t, w.Now(), time.Hour+time.Second)
}

func TestTimeouts(t *testing.T) {
	w := sim.NewWorld(sim.Config{PollCost: 3 * time.Microsecond})
	a := openTestNode(t, w, "sim://a")
	for _, d := range []time.Duration{1, time.Microsecond, 17 * time.Millisecond, 3 * time.Hour} {
		before := w.Now()
		require.ErrorIs(t, a.nctx.Progress(d), na.ErrTimeout)
		require.Equal(t, d, w.Now()-before)
	}
	before := w.Now()
	require.ErrorIs(t, a.nctx.Progress(0), na.ErrTimeout)
	require.Equal(t, 3*time.Microsecond, w.Now()-before, "a poll takes time too")
	require.Equal(t, w.Now(), a.nctx.Now())
	a.nctx.Wake()
	before = w.Now()
	require.NoError(t, a.nctx.Progress(time.Second))
	require.Equal(t, before, w.Now())
}

// TestPolling checks that a program that only polls completes its operations.
func TestPolling(t *testing.T) {
	w := sim.NewWorld(sim.Config{})
	a, b := openTestNode(t, w, "sim://a"), openTestNode(t, w, "sim://b")
	recv := b.post(b.nctx.RecvUnexpected)
	a.post(func(op *na.Op) error { return a.nctx.SendUnexpected(op, b.addr(), 1, []byte("x")) })
	for range 1000 {
		_ = a.nctx.Progress(0)
		a.nctx.Trigger(0)
		_ = b.nctx.Progress(0)
		b.nctx.Trigger(0)
		if recv.count > 0 {
			return
		}
	}
	t.Fatal("no message after 1000 polls")
}

// TestGoroutines checks that several goroutines may drive an unpaced world, although its time
// advances quickly: an operation may end by its deadline, but it ends once, with a correct result.
func TestGoroutines(t *testing.T) {
	eachLevel(t, func(t *testing.T, cfg sim.Config) {
		w := sim.NewWorld(cfg)
		server := openTestNode(t, w, "sim://server")
		remote := server.mem(na.ReadOnly, 3, 70_000)
		clients := []*testNode{openTestNode(t, w, "sim://"), openTestNode(t, w, "sim://")}
		var wg sync.WaitGroup
		for i := range 4 { // two on each context
			wg.Go(func() {
				p := clients[i%2]
				for range 25 {
					local := p.local(0, 70_000)
					var ended atomic.Int32
					var r na.Result
					op := p.nctx.NewOp(func(_ *na.Op, got na.Result) {
						r = got
						ended.Add(1)
					})
					if err := p.nctx.Get(op, local, 0, server.addr(), remote.Key(), 0, 70_000); err != nil {
						t.Error(err)
						return
					}
					for ended.Load() == 0 {
						_ = p.nctx.Progress(time.Millisecond)
						p.nctx.Trigger(0)
					}
					switch code := na.CodeOf(r.Err); code {
					case na.OK:
						requirePattern(t, local, 3)
					case na.ErrPeerLost, na.ErrUnreachable:
					default:
						t.Error(r.Err)
					}
					if n := ended.Load(); n != 1 {
						t.Errorf("the callback ran %d times", n)
					}
				}
			})
		}
		wg.Wait()
		for _, p := range append(clients, server) {
			p.close()
		}
	})
}

// TestSleeper checks that a goroutine that waits in a world without further events is woken by an
// action of another one.
func TestSleeper(t *testing.T) {
	for name, act := range map[string]func(a, b *testNode){
		"wake":  func(a, _ *testNode) { a.nctx.Wake() },
		"close": func(a, _ *testNode) { _ = a.cls.Close() },
		// Its GOAWAY has to be delivered by a driver.
		"peer closes": func(_, b *testNode) { _ = b.cls.Close() },
		"post": func(a, b *testNode) {
			b.post(func(op *na.Op) error { return b.nctx.SendUnexpected(op, a.addr(), 1, nil) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := sim.NewWorld(sim.Config{})
			cfg := na.Config{Plugins: []na.Plugin{w.Plugin()}, IdleTimeout: -1} // with nothing to do some time
			a, b := openTestNodeWith(t, cfg, "sim://a"), openTestNodeWith(t, cfg, "sim://b")
			a.post(a.nctx.RecvUnexpected)
			if name == "peer closes" {
				require.NoError(t, a.send(b.addr(), 1, "x").Err) // there is a session
				b.recv().Envelope.Free()                         // and nothing is open in it, which would be looked after for ever
				b.post(b.nctx.RecvUnexpected)                    // the operations that Close ends are not triggered
				b.post(b.nctx.RecvUnexpected)
				a.nctx.OnFault(func(na.Addr, error) {})
			}
			ended := make(chan error)
			go func() { ended <- a.nctx.Progress(-1) }()
			for w.Sleepers() == 0 {
				runtime.Gosched()
			}
			act(a, b)
			require.NoError(t, <-ended)
			require.Less(t, w.Now(), 2*time.Second)
		})
	}
}

// TestDefaultWorld checks that the default world is paced.
func TestDefaultWorld(t *testing.T) {
	a, b := openTestNodeWith(t, na.Config{}, "sim://default-a"), openTestNodeWith(t, na.Config{}, "sim://default-b")
	require.NoError(t, a.send(b.addr(), 1, "x").Err)
	r := b.recv()
	require.NoError(t, r.Err)
	r.Envelope.Free()
	began, before := time.Now(), a.nctx.Now()
	require.ErrorIs(t, a.nctx.Progress(20*time.Millisecond), na.ErrTimeout)
	require.GreaterOrEqual(t, time.Since(began), 20*time.Millisecond)
	require.Equal(t, 20*time.Millisecond, a.nctx.Now()-before)
	a.close()
	b.close()
}

func TestGoroutinesPaced(t *testing.T) {
	w := sim.NewWorld(sim.Config{Paced: true})
	pingPong(t, w, 4, 50)
	require.Less(t, w.Now(), 5*time.Second)
}

// pingPong runs pairs of goroutines that exchange messages, all in one world.
func pingPong(t *testing.T, w *sim.World, pairs, rounds int) {
	t.Helper()
	var wg sync.WaitGroup
	for range pairs {
		a, b := openTestNode(t, w, "sim://"), openTestNode(t, w, "sim://"+randomName(w))
		wg.Go(func() {
			for i := range rounds {
				r := b.recv()
				if r.Err != nil || int(r.Tag) != i {
					t.Errorf("message %d: got %+v", i, r)
				}
				r.Envelope.Free()
				if r := b.do(func(op *na.Op) error { return b.nctx.SendExpected(op, r.Addr, r.Tag, []byte("pong")) }); r.Err != nil {
					t.Error(r.Err)
				}
			}
			for b.nctx.Stats().Peers > 0 { // until the other has closed
				_ = b.nctx.Progress(time.Millisecond)
			}
			b.close()
		})
		wg.Go(func() {
			for i := range rounds {
				buf := make([]byte, 8)
				answer := a.post(func(op *na.Op) error { return a.nctx.RecvExpected(op, b.addr(), na.Tag(i), buf) })
				if r := a.send(b.addr(), na.Tag(i), "ping"); r.Err != nil {
					t.Error(r.Err)
				}
				if r := a.wait(answer); r.Err != nil {
					t.Error(r.Err)
				}
			}
			a.close()
		})
	}
	wg.Wait()
}

func randomName(w *sim.World) string {
	var b [8]byte
	w.Rand(b[:])
	const hex = "0123456789abcdef"
	name := make([]byte, 0, 16)
	for _, c := range b {
		name = append(name, hex[c>>4], hex[c&15])
	}
	return string(name)
}
