package sim_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

const big = 4 << 20

// TestCancelInMidChunk checks that a transfer that is canceled at any moment leaves the framing of
// the stream intact, and the canceled memory untouched.
func TestCancelInMidChunk(t *testing.T) {
	for _, kind := range []string{"get", "put"} {
		eachLevel(t, func(t *testing.T, cfg sim.Config) {
			cfg.Window = 32 << 10 // an eighth of a chunk
			whole, _ := cancelInMidChunk(t, cfg, kind, time.Second)
			const steps = 12
			inside := 0
			for i := range time.Duration(steps) {
				cfg.Seed = *seedFlag + uint64(i)
				if _, partly := cancelInMidChunk(t, cfg, kind, whole*i/steps); partly {
					inside++
				}
			}
			require.GreaterOrEqual(t, inside, steps/2, "cancels in the middle")
		})
	}
}

// cancelInMidChunk returns how long the transfer took until it ended or was canceled, and whether a
// part of it was done.
func cancelInMidChunk(t *testing.T, cfg sim.Config, kind string, after time.Duration) (took time.Duration, partly bool) {
	t.Helper()
	w := sim.NewWorld(cfg)
	a, b := openTestNode(t, w, "sim://a"), openTestNode(t, w, "sim://b")
	require.NoError(t, a.send(b.addr(), 1, "hello").Err)
	b.recv().Envelope.Free()
	remote, local := b.mem(na.ReadWrite, 3, big), a.local(99, 1<<20, big-1<<20)
	o := a.post(func(op *na.Op) error {
		if kind == "get" {
			return a.nctx.Get(op, local, 0, b.addr(), remote.Key(), 0, big)
		}
		return a.nctx.Put(op, local, 0, b.addr(), remote.Key(), 0, big)
	})
	began := w.Now()
	for a.nctx.Upper().Queued() == 0 && w.Now()-began < after {
		w.Sleep(2 * time.Microsecond)
	}
	took = w.Now() - began
	o.op.Cancel()
	a.nctx.Trigger(0)
	require.Equal(t, 1, o.count, "canceled without Progress")
	if o.Err == nil {
		require.Equal(t, int64(big), o.N)
	} else {
		require.ErrorIs(t, o.Err, na.ErrCanceled)
		partly = o.N > 0 && o.N < big
		if kind == "get" { // the memory is the test's again: no write follows
			for _, s := range local.Segments() {
				clear(s)
			}
		}
	}

	// The same connection continues, byte-exact.
	require.NoError(t, a.send(b.addr(), 2, "after").Err)
	r := b.recv()
	require.NoError(t, r.Err)
	require.Equal(t, "after", string(r.Envelope.Data))
	r.Envelope.Free()
	fresh := b.mem(na.ReadWrite, 5, 300<<10)
	mine := a.local(0, 300<<10)
	require.NoError(t, a.get(mine, b.addr(), fresh.Key()).Err)
	requirePattern(t, mine, 5)
	require.NoError(t, a.put(a.local(8, 300<<10), b.addr(), fresh.Key()).Err)
	requirePattern(t, fresh, 8)
	w.Sleep(time.Second)
	if kind == "get" && o.Err != nil {
		for _, s := range local.Segments() {
			require.Equal(t, len(s), bytes.Count(s, []byte{0}), "bytes were written after the cancel")
		}
	}
	require.Equal(t, uint64(1), w.Stats().Connects, "no new connection was needed")
	require.Zero(t, a.nctx.Stats().Violations+b.nctx.Stats().Violations)
	a.close()
	b.close()
	return took, partly
}

// TestCutAnywhere checks that a frame of any length arrives whole although the stream is cut
// everywhere.
func TestCutAnywhere(t *testing.T) {
	w := sim.NewWorld(sim.Config{Seed: *seedFlag, Level: sim.LevelB, Window: 300})
	a, b := openTestNode(t, w, "sim://a"), openTestNode(t, w, "sim://b")
	for n := range 600 {
		text := patternAt(byte(n), 0, n)
		o := a.post(func(op *na.Op) error { return a.nctx.SendUnexpected(op, b.addr(), na.Tag(n), text) })
		r := b.recv()
		require.NoError(t, r.Err)
		require.Equal(t, text, append([]byte{}, r.Envelope.Data...))
		require.NoError(t, a.wait(o).Err)
		r.Envelope.Free()
	}
	s := w.Stats()
	require.Greater(t, s.Cuts, uint64(300))
	require.Greater(t, s.Full, uint64(300))
}

// TestManyTransfersDoNotStall checks that transfers over the limit begin when others end, not at
// the next timer.
func TestManyTransfersDoNotStall(t *testing.T) {
	eachLevel(t, func(t *testing.T, cfg sim.Config) {
		w := sim.NewWorld(cfg)
		a, b := openTestNode(t, w, "sim://"), openTestNode(t, w, "sim://b")
		const n, size = 500, 300
		remote, local := b.mem(na.ReadOnly, 1, n*size), a.local(2, n*size)
		var all []*outcome
		for i := range int64(n) {
			all = append(all, a.post(func(op *na.Op) error {
				return a.nctx.Get(op, local, i*size, b.addr(), remote.Key(), i*size, size)
			}))
		}
		for _, o := range all {
			require.NoError(t, a.wait(o).Err)
		}
		requirePattern(t, local, 1)
		require.Less(t, w.Now(), 100*time.Millisecond)
	})
}

// TestBandwidth checks that the configured bandwidth takes virtual time.
func TestBandwidth(t *testing.T) {
	w := sim.NewWorld(sim.Config{Bandwidth: 1e6})
	a, b := openTestNode(t, w, "sim://a"), openTestNode(t, w, "sim://b")
	remote := b.mem(na.ReadOnly, 3, 1e6)
	require.NoError(t, a.get(a.local(0, 1e6), b.addr(), remote.Key()).Err)
	require.InDelta(t, 1, w.Now().Seconds(), 0.01)
}

// TestLevelsAgree checks that the two levels differ in how bytes are transported, not in the
// results of a program.
func TestLevelsAgree(t *testing.T) {
	var seen [2][]string
	for _, level := range []sim.Level{sim.LevelA, sim.LevelB} {
		w := sim.NewWorld(sim.Config{Seed: *seedFlag, Level: level})
		a, b := openTestNode(t, w, "sim://a"), openTestNode(t, w, "sim://b")
		note := func(format string, args ...any) { seen[level] = append(seen[level], fmt.Sprintf(format, args...)) }
		for i := range 20 {
			size := 1 << i
			if size <= 4096 {
				text := make([]byte, size)
				require.NoError(t, a.do(func(op *na.Op) error { return a.nctx.SendUnexpected(op, b.addr(), na.Tag(i), text) }).Err)
				r := b.recv()
				note("message %d %d %v", r.Tag, len(r.Envelope.Data), r.Addr.Named())
				r.Envelope.Free()
			}
			remote := b.mem(na.ReadWrite, byte(i), size)
			local := a.local(0, size)
			r := a.get(local, b.addr(), remote.Key())
			requirePattern(t, local, byte(i))
			note("get %d %v", r.N, r.Err)
			r = a.put(a.local(7, size), b.addr(), remote.Key())
			requirePattern(t, remote, 7)
			note("put %d %v", r.N, r.Err)
			_, err := a.cls.Register(na.ReadOnly, make([]byte, 4))
			require.NoError(t, err)
			bad := remote.Key()
			bad.Token[0] ^= 1
			note("bad key %v", a.get(local, b.addr(), bad).Err)
		}
		a.close()
		b.close()
		if cuts := w.Stats().Cuts; level == sim.LevelA {
			require.Zero(t, cuts)
		} else {
			require.Greater(t, cuts, uint64(100))
		}
	}
	require.Equal(t, seen[0], seen[1])
}

// TestReset checks that Reset ends the session of both sides, and the next operation makes a new
// one.
func TestReset(t *testing.T) {
	eachLevel(t, func(t *testing.T, cfg sim.Config) {
		cfg.Faults.Reset = 0.02
		w := sim.NewWorld(cfg)
		a, b := openTestNode(t, w, "sim://a"), openTestNode(t, w, "sim://b")
		w.Go("b", func() {
			for {
				r := b.recv()
				if r.Err != nil {
					return
				}
				r.Envelope.Free()
				b.do(func(op *na.Op) error { return b.nctx.SendExpected(op, r.Addr, r.Tag, []byte("y")) })
			}
		})
		failed := 0
		w.Go("a", func() {
			for i := range 500 {
				if err := a.call(b.addr(), na.Tag(i), "y"); err != nil {
					failed++
				}
			}
			b.cls.Close()
		})
		require.NoError(t, w.Run(time.Hour))
		require.Greater(t, failed, 3)
		require.Less(t, failed, 250)
		require.GreaterOrEqual(t, int(w.Stats().Resets), failed/2)
		require.Positive(t, a.nctx.Stats().PeersLost)
	})
}

// TestCorrupt checks that a damaged byte never reaches a program: the session ends instead.
func TestCorrupt(t *testing.T) {
	eachLevel(t, func(t *testing.T, cfg sim.Config) {
		cfg.Faults.Corrupt = 0.02
		w := sim.NewWorld(cfg)
		a, b := openTestNode(t, w, "sim://a"), openTestNode(t, w, "sim://b")
		w.Go("b", func() {
			for {
				r := b.recv()
				if r.Err != nil {
					return
				}
				text := string(r.Envelope.Data)
				require.Equal(t, fmt.Sprint("message ", r.Tag), text)
				r.Envelope.Free()
				b.do(func(op *na.Op) error { return b.nctx.SendExpected(op, r.Addr, r.Tag, []byte(text)) })
			}
		})
		w.Go("a", func() {
			remote := b.mem(na.ReadWrite, 3, 100<<10)
			for i := range 300 {
				if a.call(b.addr(), na.Tag(i), fmt.Sprint("message ", i)) != nil { // checks the text
					w.Sleep(time.Second) // over the pause after a dial that failed
				}
				local := a.local(0, 100<<10)
				if r := a.get(local, b.addr(), remote.Key()); r.Err == nil {
					requirePattern(t, local, 3)
				}
			}
			b.cls.Close()
		})
		require.NoError(t, w.Run(time.Hour))
		require.Positive(t, w.Stats().Corrupted)
		require.Positive(t, a.nctx.Stats().PeersLost+b.nctx.Stats().PeersLost)
	})
}

func TestClog(t *testing.T) {
	w := sim.NewWorld(sim.Config{Seed: *seedFlag, Faults: sim.Faults{Clog: 0.05, ClogFor: 300 * time.Millisecond}})
	a, b := openTestNode(t, w, "sim://a"), openTestNode(t, w, "sim://b")
	w.Go("b", func() { b.echo(200) })
	w.Go("a", func() {
		for i := range 200 {
			require.NoError(t, a.call(b.addr(), na.Tag(i), "x"))
		}
	})
	require.NoError(t, w.Run(time.Hour))
	require.Positive(t, w.Stats().Clogs)
	require.Greater(t, w.Now(), time.Second)
}

func TestRefuse(t *testing.T) {
	w := sim.NewWorld(sim.Config{Faults: sim.Faults{Refuse: 1}})
	a, b := openTestNode(t, w, "sim://a"), openTestNode(t, w, "sim://b")
	require.ErrorIs(t, a.send(b.addr(), 1, "x").Err, na.ErrUnreachable)
	w.SetFaults(sim.Faults{})
	require.ErrorContains(t, a.send(b.addr(), 1, "x").Err, "next dial in")
	w.Sleep(10 * time.Millisecond)
	require.NoError(t, a.send(b.addr(), 1, "x").Err)
	require.Equal(t, uint64(1), w.Stats().Refusals)
}
