package sim_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// TestLossyNetwork checks that loss, duplicates and reordering only add delays: the moved bytes are
// correct and in order.
func TestLossyNetwork(t *testing.T) {
	for name, f := range map[string]sim.Faults{
		"none": {}, "loss": {Loss: 0.3}, "duplicate": {Duplicate: 0.5}, "reorder": {Reorder: 0.2, ReorderFor: time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := sim.Config{Seed: *seedFlag, Level: sim.LevelB, Bandwidth: 1e8, Window: 64 << 10}
			moved := func(f sim.Faults) (time.Duration, sim.Stats) {
				w := sim.NewWorld(cfg)
				a, b := openTestNode(t, w, "sim://a"), openTestNode(t, w, "sim://b")
				require.NoError(t, a.send(b.addr(), 1, "hello").Err)
				b.recv().Envelope.Free()
				w.SetFaults(f)
				begun := w.Now()
				remote, local := b.mem(na.ReadOnly, 3, big/4), a.local(99, big/4)
				require.NoError(t, a.get(local, b.addr(), remote.Key()).Err)
				requirePattern(t, local, 3)
				took := w.Now() - begun
				for i := range na.Tag(20) {
					require.NoError(t, a.send(b.addr(), i, "again").Err)
				}
				for i := range na.Tag(20) {
					r := b.recv()
					require.Equal(t, i, r.Tag)
					r.Envelope.Free()
				}
				a.close()
				b.close()
				return took, w.Stats()
			}
			plain, _ := moved(sim.Faults{})
			took, st := moved(f)
			if name == "none" {
				require.Equal(t, plain, took)
			} else {
				require.Greater(t, took, plain)
			}
			require.Equal(t, f.Loss > 0, st.Lost > 0)
			require.Equal(t, f.Duplicate > 0, st.Duplicated > 0)
			require.Equal(t, f.Reorder > 0, st.Reordered > 0)
		})
	}
}

// TestLossOfEverything checks that a peer is lost over a network that loses everything.
func TestLossOfEverything(t *testing.T) {
	w := sim.NewWorld(sim.Config{Seed: *seedFlag})
	a, b := openTestNode(t, w, "sim://a"), openTestNode(t, w, "sim://b")
	require.NoError(t, a.send(b.addr(), 1, "hello").Err)
	b.recv().Envelope.Free()
	m := b.mem(na.ReadOnly, 3, 1000)
	w.SetFaults(sim.Faults{Loss: 1})
	begun := w.Now()
	require.ErrorIs(t, a.get(a.local(0, 1000), b.addr(), m.Key()).Err, na.ErrPeerLost)
	require.Less(t, w.Now()-begun, 30*time.Second)
	w.SetFaults(sim.Faults{})
	w.Sleep(time.Second)
	require.NoError(t, a.get(a.local(0, 1000), b.addr(), m.Key()).Err)
	a.close()
	b.close()
}

func TestFailPost(t *testing.T) {
	w := sim.NewWorld(sim.Config{Seed: *seedFlag})
	a, b := openTestNode(t, w, "sim://a"), openTestNode(t, w, "sim://b")
	require.Zero(t, w.Node("a").Posts())
	require.NoError(t, a.send(b.addr(), 1, "hello").Err)
	require.Equal(t, 2, w.Node("a").Posts(), "a dial and a send")
	b.recv().Envelope.Free()
	m := b.mem(na.ReadOnly, 3, 1000)
	w.Node("a").FailPost(2, na.ErrNoMemory)
	require.NoError(t, a.send(b.addr(), 2, "one").Err)
	r := a.get(a.local(0, 1000), b.addr(), m.Key())
	require.ErrorIs(t, r.Err, na.ErrNoMemory)
	require.Equal(t, na.NotRun, r.Fate)
	require.NoError(t, a.get(a.local(0, 1000), b.addr(), m.Key()).Err)
	w.Node("b").FailPost(1, na.ErrAgain)
	_, err := b.cls.Register(na.ReadOnly, make([]byte, 10))
	require.ErrorIs(t, err, na.ErrAgain)
	w.SetFaults(sim.Faults{Again: 1})
	for range 10 {
		err := a.send(b.addr(), 3, "never").Err
		require.True(t, na.CodeOf(err) == na.ErrAgain || na.CodeOf(err) == na.ErrNoMemory, err)
	}
	require.EqualValues(t, 12, w.Stats().Failed)
	w.SetFaults(sim.Faults{})
	require.Equal(t, na.Tag(2), b.recv().Tag)
	a.close()
	b.close()
}

// TestHooks checks that hooks run between two events, by time and by count, and may call functions
// that do not wait.
func TestHooks(t *testing.T) {
	w := sim.NewWorld(sim.Config{Seed: *seedFlag})
	var at []time.Duration
	var events []uint64
	w.Go("a", func() {
		w.After(2*time.Millisecond, func() { at = append(at, w.Now()) })
		w.After(time.Millisecond, func() {
			at = append(at, w.Now())
			w.After(0, func() { at = append(at, w.Now()) })
		})
		before := w.Stats().Events
		for _, n := range []int{3, 1} {
			w.AfterEvents(n, func() { events = append(events, w.Stats().Events-before) })
		}
		for range 5 {
			w.Sleep(time.Millisecond)
		}
	})
	require.NoError(t, w.Run(0))
	ms := time.Millisecond
	require.Equal(t, []time.Duration{ms, ms, 2 * ms}, at)
	require.Equal(t, []uint64{1, 3}, events)
}
