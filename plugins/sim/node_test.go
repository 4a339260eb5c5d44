package sim_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// waitForTimeout posts a receive of an answer that never arrives and returns when and how it ended.
func (p *testNode) waitForTimeout(w *sim.World, peer na.Addr) (time.Duration, error) {
	before := w.Now()
	r := p.do(func(op *na.Op) error { return p.nctx.RecvExpected(op, peer, 1<<40, make([]byte, 8)) })
	return w.Now() - before, r.Err
}

// serveForever answers calls until the coroutine ends.
func serveForever(t testing.TB, w *sim.World, addr string) func() {
	return func() {
		p := openTestNode(t, w, addr)
		for {
			p.echo(1)
		}
	}
}

func TestCrash(t *testing.T) {
	for _, c := range []struct {
		name   string
		silent bool
		after  time.Duration // the last sign of life
	}{
		{"reset", false, 0},
		{"silence", true, 5 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := sim.NewWorld(sim.Config{})
			n := w.Node("server")
			n.Go(serveForever(t, w, "sim://server"))
			w.Go("client", func() {
				w.Sleep(time.Millisecond)
				p, to := openTestNode(t, w, "sim://client"), addrOf(t, "sim://server")
				var faults []na.Addr
				p.nctx.OnFault(func(peer na.Addr, _ error) { faults = append(faults, peer.Named()) })
				require.NoError(t, p.call(to, 1, "x"))
				old := p.mem(na.ReadWrite, 1, 10)
				before := w.Now()
				answer := p.post(func(op *na.Op) error { return p.nctx.RecvExpected(op, to, 1<<40, make([]byte, 8)) })
				if c.silent {
					n.PowerOff()
				} else {
					n.Crash()
				}
				r := p.wait(answer)
				require.ErrorIs(t, r.Err, na.ErrPeerLost)
				require.Equal(t, na.MaybeRan, r.Fate)
				require.InDelta(t, c.after.Seconds(), (w.Now() - before).Seconds(), 0.001)
				require.Equal(t, []na.Addr{to}, faults)

				before = w.Now()
				r = p.send(to, 2, "nobody there")
				require.ErrorIs(t, r.Err, na.ErrUnreachable)
				require.Equal(t, na.NotRun, r.Fate)
				require.GreaterOrEqual(t, w.Now()-before, c.after, "the time for a connection is 5 s, too")

				n.Go(serveForever(t, w, "sim://server")) // it restarts
				w.Sleep(5 * time.Second)
				require.NoError(t, p.call(to, 3, "again"))
				n.Crash()
				_ = old
				p.close()
			})
			require.NoError(t, w.Run(time.Minute))
			require.Equal(t, uint64(2), w.Stats().Crashes)
		})
	}
}

// TestRestartAfterSilence checks that a node that has restarted notifies the peers of its previous
// instance.
func TestRestartAfterSilence(t *testing.T) {
	w := sim.NewWorld(sim.Config{})
	n := w.Node("server")
	n.Go(serveForever(t, w, "sim://server"))
	w.Go("client", func() {
		w.Sleep(time.Millisecond)
		p, to := openTestNode(t, w, "sim://client"), addrOf(t, "sim://server")
		require.NoError(t, p.call(to, 1, "x"))
		n.PowerOff()
		n.Go(serveForever(t, w, "sim://server"))
		w.Sleep(time.Millisecond)
		after, err := p.waitForTimeout(w, to) // its first heartbeat meets the new incarnation
		require.ErrorIs(t, err, na.ErrPeerLost)
		require.Less(t, after, 2*time.Second)
		require.NoError(t, p.call(to, 2, "y"))
		n.Crash()
	})
	require.NoError(t, w.Run(time.Minute))
}

// TestCrashKeepsSentData checks that what a node sent before it crashed still arrives.
func TestCrashKeepsSentData(t *testing.T) {
	w := sim.NewWorld(sim.Config{Latency: time.Millisecond})
	a, b := openTestNode(t, w, "sim://a"), openTestNode(t, w, "sim://b")
	require.NoError(t, a.send(b.addr(), 1, "first").Err)
	require.NoError(t, a.send(b.addr(), 2, "second").Err)
	w.Node("a").Crash()
	for _, text := range []string{"first", "second"} {
		r := b.recv()
		require.NoError(t, r.Err)
		require.Equal(t, text, string(r.Envelope.Data))
		r.Envelope.Free()
	}
	before := w.Now()
	require.ErrorIs(t, a.nctx.Progress(time.Second), na.ErrTimeout, "the crashed context receives nothing")
	require.Equal(t, time.Second, w.Now()-before)
	require.ErrorIs(t, a.nctx.Progress(-1), na.ErrTimeout, "and does not wait for ever")
	b.close()
}

// TestCrashWhileDialing checks a crash while the connection is being made, at each moment of that.
func TestCrashWhileDialing(t *testing.T) {
	for _, victim := range []string{"a", "b"} {
		for after := range 8 {
			w := sim.NewWorld(sim.Config{Latency: 2 * time.Microsecond})
			a, b := openTestNode(t, w, "sim://a"), openTestNode(t, w, "sim://b")
			o := a.post(func(op *na.Op) error { return a.nctx.SendUnexpected(op, b.addr(), 1, []byte("x")) })
			w.Sleep(time.Duration(after) * time.Microsecond)
			w.Node(victim).Crash()
			if victim == "a" {
				b.close()
				w.Sleep(time.Minute)
				continue
			}
			if r := a.wait(o); r.Err != nil {
				require.ErrorIs(t, r.Err, na.ErrUnreachable)
			}
			a.close()
		}
	}
}

func TestPauseShort(t *testing.T) {
	w := sim.NewWorld(sim.Config{})
	n := w.Node("server")
	n.Go(serveForever(t, w, "sim://server"))
	w.Go("client", func() {
		w.Sleep(time.Millisecond)
		p, to := openTestNode(t, w, "sim://client"), addrOf(t, "sim://server")
		require.NoError(t, p.call(to, 1, "x"))
		n.Pause(time.Second)
		before := w.Now()
		require.NoError(t, p.call(to, 2, "y"))
		require.GreaterOrEqual(t, w.Now()-before, time.Second)
		require.Less(t, w.Now()-before, time.Second+time.Millisecond)
		require.Zero(t, p.nctx.Stats().PeersLost)
		n.Crash()
		p.close()
	})
	require.NoError(t, w.Run(time.Minute))
}

func TestPauseLong(t *testing.T) {
	w := sim.NewWorld(sim.Config{})
	n := w.Node("server")
	n.Go(serveForever(t, w, "sim://server"))
	w.Go("client", func() {
		w.Sleep(time.Millisecond)
		p, to := openTestNode(t, w, "sim://client"), addrOf(t, "sim://server")
		require.NoError(t, p.call(to, 1, "x"))
		n.Pause(30 * time.Second)
		after, err := p.waitForTimeout(w, to)
		require.ErrorIs(t, err, na.ErrPeerLost)
		require.InDelta(t, 5, after.Seconds(), 0.01, "from its last sign of life")
		w.Sleep(30 * time.Second)
		require.NoError(t, p.call(to, 2, "y"), "it is back")
		n.Crash()
	})
	require.NoError(t, w.Run(2*time.Minute))
}

// TestPauseIsBounded checks that the coroutines of a paused node do not run, and data for it fills
// one window and no more.
func TestPauseIsBounded(t *testing.T) {
	eachLevel(t, func(t *testing.T, cfg sim.Config) {
		cfg.Window = 64 << 10
		w := sim.NewWorld(cfg)
		a, b := openTestNode(t, w, "sim://a"), openTestNode(t, w, "sim://b")
		ticks := 0
		w.Node("b").Go(func() {
			for range 100 {
				w.Sleep(10 * time.Millisecond)
				ticks++
			}
		})
		remote := b.mem(na.ReadWrite, 1, 4<<20)
		w.Go("a", func() {
			require.NoError(t, a.send(b.addr(), 1, "hello").Err)
			w.Sleep(100 * time.Millisecond)
			require.Equal(t, 10, ticks)
			w.Node("b").Pause(0)
			put := a.post(func(op *na.Op) error { return a.nctx.Put(op, a.local(7, 4<<20), 0, b.addr(), remote.Key(), 0, 4<<20) })
			w.Sleep(time.Second)
			require.Equal(t, 10, ticks)
			require.Zero(t, put.count)
			require.Less(t, w.Stats().Bytes, uint64(64<<10), "nothing was delivered")
			w.Node("b").Resume()
			require.NoError(t, a.wait(put).Err)
			requirePattern(t, remote, 7)
		})
		require.NoError(t, w.Run(time.Minute))
		require.Equal(t, 100, ticks)
	})
}

func TestPartition(t *testing.T) {
	for _, c := range []struct {
		name string
		part func(w *sim.World)
	}{
		{"to", func(w *sim.World) { w.Partition("client", "server", false) }},
		{"from", func(w *sim.World) { w.Partition("server", "client", false) }},
		{"both", func(w *sim.World) { w.Partition("server", "client", true) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := sim.NewWorld(sim.Config{})
			n := w.Node("server")
			n.Go(serveForever(t, w, "sim://server"))
			bystander := w.Node("bystander")
			bystander.Go(func() {
				w.Sleep(time.Millisecond)
				p := openTestNode(t, w, "sim://bystander")
				for i := range 100 {
					w.Sleep(100 * time.Millisecond)
					before := w.Now()
					require.NoError(t, p.call(addrOf(t, "sim://server"), na.Tag(i), "still there"))
					require.Less(t, w.Now()-before, time.Millisecond)
				}
			})
			w.Go("client", func() {
				w.Sleep(time.Millisecond)
				p, to := openTestNode(t, w, "sim://client"), addrOf(t, "sim://server")
				require.NoError(t, p.call(to, 1, "x"))

				// Three seconds: no peer is lost.
				c.part(w)
				w.Go("healer", func() {
					w.Sleep(3 * time.Second)
					w.Heal()
				})
				before := w.Now()
				require.NoError(t, p.call(to, 2, "y"))
				require.InDelta(t, 3, (w.Now() - before).Seconds(), 0.01)
				require.Zero(t, p.nctx.Stats().PeersLost)

				// A minute: the peer is lost five seconds after its last sign of life, and a new
				// session is made within two after healing.
				c.part(w)
				after, err := p.waitForTimeout(w, to)
				require.ErrorIs(t, err, na.ErrPeerLost)
				require.InDelta(t, 5, after.Seconds(), 0.01)
				w.Sleep(time.Minute)
				w.Heal()
				before = w.Now()
				require.NoError(t, p.call(to, 3, "z"))
				require.Less(t, w.Now()-before, 2*time.Second)
				n.Crash()
			})
			require.NoError(t, w.Run(10*time.Minute))
		})
	}
}

// TestPartitionWhileDialing checks that dialling through a partition waits, and works if it heals
// in time.
func TestPartitionWhileDialing(t *testing.T) {
	w := sim.NewWorld(sim.Config{})
	a, b := openTestNode(t, w, "sim://a"), openTestNode(t, w, "sim://b")
	w.Partition("b", "a", false)
	r := a.send(b.addr(), 1, "x")
	require.ErrorIs(t, r.Err, na.ErrUnreachable)
	require.InDelta(t, 5.5, w.Now().Seconds(), 0.5)
	w.Heal()
	w.Sleep(time.Second) // over the pause after the failure
	w.Partition("a", "b", false)
	o := a.post(func(op *na.Op) error { return a.nctx.SendUnexpected(op, b.addr(), 2, []byte("y")) })
	before := w.Stats().Connects
	w.Sleep(time.Second)
	require.Zero(t, o.count)
	require.Equal(t, before, w.Stats().Connects)
	w.Heal()
	require.NoError(t, a.wait(o).Err)
	require.Equal(t, na.Tag(2), b.recv().Tag)
}

// TestPartitionHoldsRoom checks that a sender does not get credit across a partition.
func TestPartitionHoldsRoom(t *testing.T) {
	eachLevel(t, func(t *testing.T, cfg sim.Config) {
		cfg.Window = 64 << 10
		w := sim.NewWorld(cfg)
		a, b := openTestNode(t, w, "sim://a"), openTestNode(t, w, "sim://b")
		remote := b.mem(na.WriteOnly, 1, 4<<20)
		require.NoError(t, a.send(b.addr(), 1, "x").Err)
		w.Partition("b", "a", false)
		put := a.post(func(op *na.Op) error { return a.nctx.Put(op, a.local(7, 4<<20), 0, b.addr(), remote.Key(), 0, 4<<20) })
		w.Sleep(time.Second)
		require.Zero(t, put.count)
		require.Less(t, w.Stats().Bytes, uint64(1<<20))
		w.Heal()
		require.NoError(t, a.wait(put).Err)
		requirePattern(t, remote, 7)
	})
}

func TestHealUnclogs(t *testing.T) {
	w := sim.NewWorld(sim.Config{Faults: sim.Faults{Clog: 1, ClogFor: time.Hour}})
	a, b := openTestNode(t, w, "sim://a"), openTestNode(t, w, "sim://b")
	o := a.post(func(op *na.Op) error { return a.nctx.SendUnexpected(op, b.addr(), 1, nil) })
	w.Sleep(time.Second)
	require.Zero(t, o.count)
	w.SetFaults(sim.Faults{})
	w.Sleep(time.Second)
	require.Zero(t, o.count, "what has begun stays")
	w.Heal()
	require.NoError(t, a.wait(o).Err)
	require.NoError(t, b.recv().Err)
	require.Less(t, w.Now(), 3*time.Second)
}

// TestSimultaneousDial checks that both sides dial at once: one session results, and nothing is
// lost.
func TestSimultaneousDial(t *testing.T) {
	for seed := range uint64(50) {
		w := sim.NewWorld(sim.Config{Seed: seed, Level: sim.LevelB, Faults: sim.Faults{Jitter: 10 * time.Microsecond}})
		a, b := openTestNode(t, w, "sim://a"), openTestNode(t, w, "sim://b")
		w.Go("a", func() { require.NoError(t, a.send(b.addr(), 1, "from a").Err); require.NoError(t, a.recv().Err) })
		w.Go("b", func() { require.NoError(t, b.send(a.addr(), 1, "from b").Err); require.NoError(t, b.recv().Err) })
		require.NoError(t, w.Run(time.Minute), "seed %d", seed)
		require.Equal(t, 1, a.nctx.Stats().Peers, "seed %d", seed)
		require.Equal(t, 1, b.nctx.Stats().Peers, "seed %d", seed)
		require.Less(t, w.Now(), time.Second)
	}
}

// TestCloseWhilePaused checks that frames in flight to a context that closes while its node is
// paused are not kept.
func TestCloseWhilePaused(t *testing.T) {
	w := sim.NewWorld(sim.Config{})
	a, b := openTestNode(t, w, "sim://a"), openTestNode(t, w, "sim://b")
	require.NoError(t, a.send(b.addr(), 1, "x").Err)
	r := b.recv()
	w.Node("b").Pause(0)
	for i := range 10 {
		require.NoError(t, a.send(b.addr(), na.Tag(i), "y").Err)
	}
	w.Sleep(time.Second)
	r.Envelope.Free()
	b.close()
	w.Sleep(time.Second)
	a.close()
	w.Sleep(time.Second)
	conns, held, segments := w.Remains()
	require.Zero(t, conns+held+segments)
}

// TestRestartAfterPause checks that a peer that has filled the window of a paused node is notified
// when the node crashes and restarts.
func TestRestartAfterPause(t *testing.T) {
	w := sim.NewWorld(sim.Config{Window: 1000})
	a, b := openTestNode(t, w, "sim://a"), openTestNode(t, w, "sim://b")
	require.NoError(t, a.send(b.addr(), 1, "x").Err)
	w.Node("b").Pause(0)
	var all []*outcome
	for i := range 10 {
		all = append(all, a.post(func(op *na.Op) error { return a.nctx.SendUnexpected(op, b.addr(), na.Tag(i), make([]byte, 500)) }))
	}
	w.Sleep(time.Millisecond)
	w.Node("b").PowerOff()
	openTestNode(t, w, "sim://b")
	before := w.Now()
	for _, o := range all {
		a.wait(o)
	}
	require.ErrorIs(t, all[9].Err, na.ErrPeerLost)
	require.Less(t, w.Now()-before, time.Millisecond)
}

// TestPartitionStays checks that a partition by chance that ends does not end one that the program
// made.
func TestPartitionStays(t *testing.T) {
	w := sim.NewWorld(sim.Config{Faults: sim.Faults{Partition: 1, PartitionFor: time.Second}})
	a, b := openTestNode(t, w, "sim://a"), openTestNode(t, w, "sim://b")
	o := a.post(func(op *na.Op) error { return a.nctx.SendUnexpected(op, b.addr(), 1, nil) })
	w.Sleep(time.Millisecond)
	require.Equal(t, uint64(1), w.Stats().Partitions)
	w.SetFaults(sim.Faults{})
	w.Partition("a", "b", false)
	w.Sleep(4 * time.Second)
	require.Zero(t, o.count)
	w.Heal()
	require.NoError(t, a.wait(o).Err)
}
