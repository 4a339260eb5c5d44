package sim_test

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// echo answers n messages: each with an expected message of the same tag and text.
func (p *testNode) echo(n int) {
	for range n {
		r := p.recv()
		require.NoError(p.t, r.Err)
		text := string(r.Envelope.Data)
		r.Envelope.Free()
		require.NoError(p.t, p.do(func(op *na.Op) error { return p.nctx.SendExpected(op, r.Addr, r.Tag, []byte(text)) }).Err)
	}
}

// call sends a message and waits for its echo.
func (p *testNode) call(to na.Addr, tag na.Tag, text string) error {
	p.t.Helper()
	buf := make([]byte, 64)
	answer := p.post(func(op *na.Op) error { return p.nctx.RecvExpected(op, to, tag, buf) })
	if r := p.send(to, tag, text); r.Err != nil {
		answer.op.Cancel()
		p.wait(answer)
		return r.Err
	}
	r := p.wait(answer)
	if r.Err == nil {
		require.Equal(p.t, text, string(buf[:r.N]))
	}
	return r.Err
}

func addrOf(t testing.TB, text string) na.Addr {
	t.Helper()
	a, err := na.ParseAddr(text)
	require.NoError(t, err)
	return a
}

func TestCoroutines(t *testing.T) {
	eachLevel(t, func(t *testing.T, cfg sim.Config) {
		w := sim.NewWorld(cfg)
		const clients, calls = 3, 20
		w.Go("server", func() {
			p := openTestNode(t, w, "sim://server")
			p.echo(clients * calls)
			w.Sleep(time.Second)
			p.close()
		})
		for i := range clients {
			w.Go(fmt.Sprintf("client%d", i), func() {
				w.Sleep(time.Millisecond) // the server listens by then
				p := openTestNode(t, w, "sim://")
				for j := range calls {
					require.NoError(t, p.call(addrOf(t, "sim://server"), na.Tag(j), fmt.Sprint(i, j)))
				}
				p.close()
			})
		}
		require.NoError(t, w.Run(time.Minute))
		require.GreaterOrEqual(t, w.Now(), time.Second)
		require.Less(t, w.Now(), 2*time.Second)
	})
}

// TestCoroutinesShareContext checks that coroutines that share a context all make progress.
func TestCoroutinesShareContext(t *testing.T) {
	w := sim.NewWorld(sim.Config{})
	server := openTestNode(t, w, "sim://server")
	client := openTestNode(t, w, "sim://client")
	server.shared, client.shared = true, true
	const workers, calls = 4, 10
	for range 2 {
		w.Go("server", func() { server.echo(workers * calls / 2) })
	}
	for i := range workers {
		w.Go("client", func() {
			for j := range calls {
				require.NoError(t, client.call(server.addr(), na.Tag(100*i+j), fmt.Sprint(i, j)))
			}
		})
	}
	require.NoError(t, w.Run(time.Minute))
	server.close()
	client.close()
}

func TestCoroutineTimeouts(t *testing.T) {
	w := sim.NewWorld(sim.Config{})
	var woke []string
	for i, d := range []time.Duration{30 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond} {
		w.Go(fmt.Sprint(i), func() {
			p := openTestNode(t, w, "sim://")
			before := w.Now()
			require.ErrorIs(t, p.nctx.Progress(d), na.ErrTimeout)
			require.Equal(t, d, w.Now()-before)
			woke = append(woke, fmt.Sprint(i))
		})
	}
	require.NoError(t, w.Run(0))
	require.Equal(t, []string{"1", "2", "0"}, woke)
	require.Equal(t, 30*time.Millisecond, w.Now())
}

// TestNoFalseTimeout checks that a wait without limit does not end because another coroutine has
// consumed the event that woke it, nor because of an earlier limit.
func TestNoFalseTimeout(t *testing.T) {
	w := sim.NewWorld(sim.Config{Seed: *seedFlag})
	a, b := openTestNode(t, w, "sim://a"), openTestNode(t, w, "sim://b")
	const n = 20
	got := 0
	for range 3 {
		w.Go("a", func() {
			require.NoError(t, a.nctx.Progress(time.Second), "woken at once")
			for got < n {
				require.NoError(t, a.nctx.Progress(-1))
				a.nctx.Trigger(0)
			}
			a.nctx.Wake()
		})
	}
	w.Go("b", func() {
		for range 100 { // each is for one of them, drawn
			a.nctx.Wake()
			w.Sleep(time.Millisecond)
		}
		for range n {
			w.Sleep(2 * time.Second)
			a.post(func(op *na.Op) error { return a.nctx.RecvUnexpected(op) })
			require.NoError(t, b.send(a.addr(), 1, "x").Err)
			got++
		}
	})
	require.NoError(t, w.Run(time.Minute))
}

func TestCoroutineMakesCoroutine(t *testing.T) {
	w := sim.NewWorld(sim.Config{})
	n := 0
	w.Go("a", func() {
		w.Go("b", func() { n++ })
		w.Sleep(time.Second)
		n++
	})
	require.NoError(t, w.Run(0))
	require.Equal(t, 2, n)
}

func TestDeadlock(t *testing.T) {
	w := sim.NewWorld(sim.Config{Seed: 77})
	w.Go("stuck", func() { openTestNode(t, w, "sim://x").recv() })
	w.Go("fine", func() { w.Sleep(time.Second) })
	err := w.Run(time.Hour)
	require.ErrorIs(t, err, sim.ErrDeadlock)
	require.ErrorContains(t, err, "stuck")
	require.ErrorContains(t, err, "sim://x")
	require.ErrorContains(t, err, "seed 77")
	require.NotContains(t, err.Error(), "fine")
	require.Equal(t, time.Second, w.Now(), "nothing can happen after that")
	w.Close()
}

func TestLimit(t *testing.T) {
	w := sim.NewWorld(sim.Config{})
	w.Go("sleeper", func() { w.Sleep(time.Hour) })
	err := w.Run(time.Minute)
	require.ErrorIs(t, err, sim.ErrLimit)
	require.ErrorContains(t, err, "sleeper (sleeping until 1h0m0s)")
	require.Equal(t, time.Minute, w.Now())
	require.NoError(t, w.Run(0), "and Run may continue")
	require.Equal(t, time.Hour, w.Now())
}

// TestStuckIsGrouped checks that the error of a Run with many coroutines has a line for each kind,
// the most first.
func TestStuckIsGrouped(t *testing.T) {
	w := sim.NewWorld(sim.Config{})
	defer w.Close()
	w.Go("stuck", func() { openTestNode(t, w, "sim://x").recv() })
	for i := range 100 {
		w.Go("sleeper", func() { w.Sleep(time.Hour + time.Duration(i)*time.Second) })
	}
	err := w.Run(time.Minute)
	require.ErrorIs(t, err, sim.ErrLimit)
	require.ErrorContains(t, err, "101 coroutines are left:\n\tsleeper x 100 (sleeping until 1h0m0s)\n\tstuck (in Progress on sim://x")
	require.Equal(t, 2, strings.Count(err.Error(), "\n"), "%v", err)
}

func TestPanic(t *testing.T) {
	w := sim.NewWorld(sim.Config{Seed: 4711})
	w.Go("other", func() { w.Sleep(time.Hour) })
	w.Go("culprit", func() {
		w.Sleep(time.Millisecond)
		panic("oh no")
	})
	func() {
		defer func() {
			text := fmt.Sprint(recover())
			for _, want := range []string{"seed 4711", "culprit", "1ms", "oh no", "sched_test.go"} {
				require.Contains(t, text, want)
			}
		}()
		_ = w.Run(0)
	}()
	w.Close()
}

// TestFailNow checks that a test that fails inside a coroutine ends as usual, and the world can
// still be used.
func TestFailNow(t *testing.T) {
	w := sim.NewWorld(sim.Config{})
	w.Go("other", func() { w.Sleep(time.Hour) })
	fake := &testing.T{}
	w.Go("failing", func() { fake.FailNow() })
	ended := make(chan bool)
	go func() {
		defer close(ended)
		_ = w.Run(0)
		ended <- true
	}()
	_, returned := <-ended
	require.False(t, returned, "FailNow ends the goroutine of Run")
	require.True(t, fake.Failed())
	require.NoError(t, w.Run(0))
}

func TestKill(t *testing.T) {
	w := sim.NewWorld(sim.Config{})
	var left []string
	w.Go("victim", func() {
		defer func() {
			left = append(left, "deferred")
			w.Sleep(time.Second) // ends at once: it has no time any more
			left = append(left, "slept")
		}()
		w.Sleep(time.Hour)
		left = append(left, "resumed")
	})
	w.Go("unborn", func() { left = append(left, "born") })
	w.Kill("unborn")
	w.Go("killer", func() {
		w.Sleep(time.Second)
		w.Kill("victim")
	})
	w.Go("suicide", func() {
		w.Kill("suicide")
		left = append(left, "still there")
		w.Sleep(1)
		left = append(left, "dead")
	})
	require.NoError(t, w.Run(0))
	require.Equal(t, time.Second, w.Now())
	require.Equal(t, []string{"still there", "deferred"}, left)
}

// TestKillIsNoPanic checks that a killed coroutine cannot be kept alive by a recover.
func TestKillIsNoPanic(t *testing.T) {
	w := sim.NewWorld(sim.Config{})
	w.Go("victim", func() {
		for {
			func() {
				defer func() { _ = recover() }()
				w.Sleep(time.Hour)
			}()
		}
	})
	w.Go("killer", func() { w.Kill("victim") })
	require.NoError(t, w.Run(0))
}

func TestRunInsideRun(t *testing.T) {
	w := sim.NewWorld(sim.Config{})
	w.Go("a", func() { require.Panics(t, func() { _ = w.Run(0) }) })
	require.NoError(t, w.Run(0))
}

func TestStall(t *testing.T) {
	w := sim.NewWorld(sim.Config{Faults: sim.Faults{Stall: 10 * time.Millisecond}})
	server, client := openTestNode(t, w, "sim://server"), openTestNode(t, w, "sim://client")
	w.Go("server", func() { server.echo(100) })
	w.Go("client", func() {
		for i := range 100 {
			require.NoError(t, client.call(server.addr(), na.Tag(i), "x"))
		}
	})
	require.NoError(t, w.Run(0))
	require.Greater(t, w.Now(), time.Second)
	require.Less(t, w.Now(), 10*time.Second)
}

// TestNoAssist checks that NoAssist leaves all progress to the coroutines.
func TestNoAssist(t *testing.T) {
	eachLevel(t, func(t *testing.T, cfg sim.Config) {
		cfg.NoAssist = true
		w := sim.NewWorld(cfg)
		a, b := openTestNode(t, w, "sim://a"), openTestNode(t, w, "sim://b")
		remote := b.mem(na.ReadWrite, 3, 100)
		var got time.Duration
		w.Go("a", func() {
			local := a.local(9, 100)
			require.NoError(t, a.get(local, b.addr(), remote.Key()).Err)
			requirePattern(t, local, 3)
			got = w.Now()
		})
		w.Go("b", func() {
			w.Sleep(time.Second) // not in Progress: a is not even received
			_ = b.nctx.Progress(time.Second)
		})
		require.NoError(t, w.Run(0))
		require.Greater(t, got, time.Second)
		require.Less(t, got, time.Second+time.Millisecond)
	})
}

func TestTraceText(t *testing.T) {
	var text strings.Builder
	w := sim.NewWorld(sim.Config{Trace: &text})
	a, b := openTestNode(t, w, "sim://a"), openTestNode(t, w, "sim://b")
	require.NoError(t, a.send(b.addr(), 1, "x").Err)
	w.Note("done", 1, 2)
	for _, want := range []string{"open", "dial", "connect", "segment", "note"} {
		require.Contains(t, text.String(), want)
	}
	var last strings.Builder
	require.NoError(t, w.Dump(&last))
	require.Equal(t, text.String(), last.String(), "nothing is forgotten yet")
	require.Error(t, w.Dump(brokenWriter{}))
	require.Equal(t, uint64(0), w.Seed())
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.Join(os.ErrClosed) }

// TestClosedUnderWaiter checks that once a context is closed and released, every wait in its
// Progress ends.
func TestClosedUnderWaiter(t *testing.T) {
	w := sim.NewWorld(sim.Config{})
	a, b := openTestNode(t, w, "sim://a"), openTestNode(t, w, "sim://b")
	ended := 0
	for range 2 {
		w.Go("waiter", func() {
			require.ErrorIs(t, a.nctx.Progress(-1), na.ErrClosed)
			ended++
			require.ErrorIs(t, a.nctx.Progress(-1), na.ErrClosed)
		})
	}
	w.Go("closer", func() {
		w.Sleep(time.Second)
		require.NoError(t, a.cls.Close())
	})
	require.NoError(t, w.Run(0))
	require.Equal(t, 2, ended)
	require.Equal(t, time.Second, w.Now())

	closed := make(chan error)
	go func() { closed <- b.nctx.Progress(-1) }()
	for w.Sleepers() == 0 {
		runtime.Gosched()
	}
	require.NoError(t, b.cls.Close())
	require.ErrorIs(t, <-closed, na.ErrClosed)
}

func TestStuckText(t *testing.T) {
	w := sim.NewWorld(sim.Config{})
	w.Go("waits", func() { _ = openTestNode(t, w, "sim://x").nctx.Progress(time.Hour) })
	w.Go("frozen", func() { w.Sleep(time.Second) })
	w.Node("frozen").Pause(0)
	err := w.Run(time.Minute)
	require.ErrorContains(t, err, "waits (in Progress on sim://x until 1h0m0s)")
	require.ErrorContains(t, err, "frozen (paused)")
	w.Close()
}

// TestPlacement checks that classes belong to the node where they are opened.
func TestPlacement(t *testing.T) {
	w := sim.NewWorld(sim.Config{})
	box := w.Node("box")
	require.Equal(t, "box", box.Name())
	a := openTestNodeWith(t, na.Config{Plugins: []na.Plugin{box.Plugin()}}, "sim://a")
	b, c := openTestNode(t, w, "sim://b"), openTestNode(t, w, "sim://c")
	var inside *testNode
	w.Go("box", func() { inside = openTestNode(t, w, "sim://inside") })
	require.NoError(t, w.Run(0))
	require.NoError(t, c.send(a.addr(), 1, "x").Err)
	require.NoError(t, c.send(inside.addr(), 1, "x").Err)
	box.Crash()
	require.ErrorIs(t, b.send(a.addr(), 1, "x").Err, na.ErrUnreachable)
	require.ErrorIs(t, b.send(inside.addr(), 1, "x").Err, na.ErrUnreachable)
	require.NoError(t, b.send(c.addr(), 1, "x").Err)
}
