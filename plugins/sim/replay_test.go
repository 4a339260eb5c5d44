package sim_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// runStorm runs a few nodes through everything that can go wrong, and returns the world at its end.
// What the nodes see goes into the trace.
func runStorm(t testing.TB, seed uint64) *sim.World {
	rng := rand.New(rand.NewPCG(seed, 0))
	cfg := sim.Config{Seed: seed, Faults: sim.Storm().Draw(rng), Level: sim.Level(rng.Uint64() & 1)}
	cfg.Faults.Again = 0 // an answer that cannot be posted would be waited for
	w := sim.NewWorld(cfg)
	const nodes, calls = 3, 12
	left := nodes
	for i := range nodes {
		name := fmt.Sprint("node", i)
		n := w.Node(name)
		life := func() {
			p := openTestNode(t, w, "sim://"+name)
			remote := p.mem(na.ReadWrite, byte(i), 70_000)
			n.Go(func() { // the server of the node
				for {
					r := p.recv()
					if r.Err != nil {
						return
					}
					w.Note("served", uint64(r.Tag), uint64(len(r.Envelope.Data)))
					r.Envelope.Free()
					key := remote.Key().Append(nil)
					o := p.post(func(op *na.Op) error { return p.nctx.SendExpected(op, r.Addr, r.Tag, key) })
					p.shared = true
					p.wait(o)
				}
			})
			p.shared = true
			for j := range calls {
				to := addrOf(t, fmt.Sprint("sim://node", rng.IntN(nodes)))
				tag := na.Tag(j)
				buf := make([]byte, 64)
				answer := p.post(func(op *na.Op) error { return p.nctx.RecvExpected(op, to, tag, buf) })
				sent := p.send(to, tag, strings.Repeat("x", rng.IntN(4000)))
				w.Note("sent", uint64(na.CodeOf(sent.Err)), uint64(sent.Fate))
				if rng.IntN(4) == 0 {
					answer.op.Cancel()
				}
				r := p.wait(answer)
				w.Note("answer", uint64(na.CodeOf(r.Err)), uint64(r.N))
				if r.Err == nil {
					key, err := na.DecodeKey(buf[:r.N])
					require.NoError(t, err)
					local := p.local(0, 30_000, 40_000)
					got := p.get(local, to, key)
					w.Note("get", uint64(na.CodeOf(got.Err)), uint64(got.N))
				}
				w.Sleep(time.Duration(rng.Int64N(int64(time.Second))))
			}
			left--
			if left == 0 {
				for k := range nodes {
					w.Node(fmt.Sprint("node", k)).Crash()
				}
			}
		}
		n.Go(life)
	}
	w.Go("chaos", func() {
		for range 6 {
			w.Sleep(time.Duration(rng.Int64N(int64(2 * time.Second))))
			a, b := fmt.Sprint("node", rng.IntN(nodes)), fmt.Sprint("node", rng.IntN(nodes))
			switch rng.IntN(3) {
			case 0:
				w.Partition(a, b, rng.IntN(2) == 0)
			case 1:
				w.Node(a).Pause(time.Duration(rng.Int64N(int64(3 * time.Second))))
			default:
				w.Heal()
			}
		}
		w.Heal()
	})
	err := w.Run(time.Hour)
	require.NoError(t, err)
	w.Close()
	return w
}

func TestReplay(t *testing.T) {
	seen := map[uint64]uint64{}
	var all sim.Stats
	for seed := range uint64(60) {
		w := runStorm(t, seed)
		if other, ok := seen[w.Hash()]; ok {
			t.Errorf("seeds %d and %d have the same hash", seed, other)
		}
		seen[w.Hash()] = seed
		addStats(&all, w.Stats())
		if seed%4 == 0 {
			if again := runStorm(t, seed); again.Hash() != w.Hash() {
				t.Errorf("seed %d: hash %#x, then %#x", seed, w.Hash(), again.Hash())
			}
		}
	}
	t.Logf("%+v", all)
	for name, n := range map[string]uint64{
		"resets": all.Resets, "corrupted": all.Corrupted, "clogs": all.Clogs, "pauses": all.Pauses,
		"partitions": all.Partitions, "crashes": all.Crashes, "refusals": all.Refusals, "cuts": all.Cuts, "full": all.Full,
		"dropped": all.Dropped,
	} {
		require.Positive(t, n, name)
	}
}

func addStats(to *sim.Stats, s sim.Stats) {
	to.Events += s.Events
	to.Segments += s.Segments
	to.Resets += s.Resets
	to.Corrupted += s.Corrupted
	to.Clogs += s.Clogs
	to.Pauses += s.Pauses
	to.Partitions += s.Partitions
	to.Crashes += s.Crashes
	to.Refusals += s.Refusals
	to.Cuts += s.Cuts
	to.Full += s.Full
	to.Dropped += s.Dropped
}

// TestGoldenWorld checks hashes of worlds without a network: they do not change with the protocol.
func TestGoldenWorld(t *testing.T) {
	w := sim.NewWorld(sim.Config{Seed: 1, Faults: sim.Faults{Stall: time.Millisecond}})
	for i := range uint64(5) {
		w.Go(fmt.Sprint("node", i), func() {
			for j := range uint64(20) {
				var b [1]byte
				w.Rand(b[:])
				w.Note("turn", i<<8|j, uint64(b[0]))
				w.Sleep(time.Duration(b[0]) * time.Microsecond)
			}
		})
	}
	require.NoError(t, w.Run(0))
	require.Equal(t, uint64(0x8cc7f58ba43cd868), w.Hash())
}

// TestReplayAcrossProcesses checks that other processes, with one and two processors, with and
// without the race detector, replay the same trace.
func TestReplayAcrossProcesses(t *testing.T) {
	const env = "SIM_HASHES"
	hashes := func() (lines []string) {
		for seed := range uint64(8) {
			lines = append(lines, fmt.Sprintf("hash %d %#x", seed, runStorm(t, seed).Hash()))
		}
		return lines
	}
	if os.Getenv(env) != "" {
		for _, line := range hashes() {
			fmt.Println(line)
		}
		return
	}
	me := []string{os.Args[0], "-test.run=^TestReplayAcrossProcesses$", "-test.count=1"}
	type run struct {
		procs string
		argv  []string
	}
	runs := map[string]run{"one processor": {"1", me}, "two processors": {"2", me}}
	if _, err := exec.LookPath("go"); err == nil && raceflag.Enabled { // builds the package again, without
		runs["no race detector"] = run{"2", []string{"go", "test", "-run=^TestReplayAcrossProcesses$", "-count=1", "-v", "."}}
	}
	for name, c := range runs {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(c.argv[0], c.argv[1:]...)
			cmd.Env = append(os.Environ(), env+"=1", "GOMAXPROCS="+c.procs)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, string(out))
			var got []string
			for line := range strings.Lines(string(out)) {
				if strings.HasPrefix(line, "hash ") {
					got = append(got, strings.TrimSpace(line))
				}
			}
			require.Equal(t, hashes(), got)
		})
	}
}
