package raftqs

import (
	"bytes"
	"context"
	"flag"
	"io"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
	"github.com/quicksilver-rpc/quicksilver/qs/qstest"
)

var simSeed = flag.Uint64("raftqs.seed", 0, "run this seed only in TestSimulated")

// A scriptedFollower follower answers as raft does, on the coroutine of the handler. raft itself cannot run
// in the simulator: its goroutines wait in channels, and its clocks are real.
type scriptedFollower struct {
	t        *testing.T
	last     uint64 // index of its last entry
	refused  int
	snapshot []byte // that it got whole
	broken   int    // pipelines, and calls for a snapshot, that have failed
}

func (s *scriptedFollower) deliver(
	_ context.Context, rpc raft.RPC, _ bool, _ <-chan raft.RPCResponse,
) (raft.RPCResponse, error) {
	switch r := rpc.Command.(type) {
	case *raft.AppendEntriesRequest:
		resp := &raft.AppendEntriesResponse{LastLog: s.last, Success: r.PrevLogEntry <= s.last}
		if !resp.Success {
			s.refused++
		}
		for _, e := range r.Entries {
			if resp.Success && e.Index > s.last {
				require.Equal(s.t, s.last+1, e.Index)
				s.last = e.Index
			}
		}
		return raft.RPCResponse{Response: resp}, nil
	case *raft.InstallSnapshotRequest:
		b, err := io.ReadAll(rpc.Reader)
		if err != nil || int64(len(b)) != r.Size {
			return raft.RPCResponse{Response: &raft.InstallSnapshotResponse{},
				Error: io.ErrUnexpectedEOF}, nil
		}
		s.snapshot = b
		return raft.RPCResponse{Response: &raft.InstallSnapshotResponse{Success: true}}, nil
	}
	return raft.RPCResponse{}, io.ErrNoProgress
}

// TestSimulated checks that on a bad network, in virtual time, a leader gets its entries and a
// snapshot to a follower. A success of a future or a call is true; a request of a pipeline never
// overtakes an earlier one; a snapshot is whole or refused.
func TestSimulated(t *testing.T) {
	t.Parallel()
	if *simSeed != 0 {
		simulate(t, *simSeed)
		return
	}
	broken := 0
	for s := range uint64(long.Or(60, 3000)) {
		_, n := simulate(t, s+1)
		broken += n
	}
	require.Greater(t, broken, 10, "the network is too good for this test")
	one, _ := simulate(t, 7)
	two, _ := simulate(t, 7)
	require.Equal(t, one, two, "a seed does the same again")
}

// simulate returns the hash of what happened, and how many pipelines and snapshots failed.
func simulate(t *testing.T, seed uint64) (hash uint64, broken int) {
	w := sim.NewWorld(sim.Config{Seed: seed, Faults: sim.Faults{
		Jitter: 5 * time.Millisecond, Loss: 0.02, Reset: 0.02, Partition: 0.02,
		PartitionFor: 3 * time.Second, Pause: 0.002, PauseFor: time.Second,
	}})
	defer w.Close()
	open := func(addr string) *qs.Node {
		cfg := qs.Config{PeerTimeout: time.Second, ShutdownTimeout: -1,
			HG: hg.Config{NA: hg.NetConfig{Plugins: []hg.Plugin{w.Plugin()}}}}
		node, err := qs.Open(addr, cfg)
		require.NoError(t, err)
		return node
	}
	follower := &scriptedFollower{t: t}
	serving, stop := context.WithCancel(context.Background())
	defer stop()
	w.Go("follower", func() {
		node := open("sim://follower")
		to := NewTransport(node, Options{})
		to.deliver, to.offer = follower.deliver, func(raft.RPC) bool { return false }
		_ = node.Serve(serving)
		_ = to.Close()
	})
	const all = 60
	var want bytes.Buffer
	_, _ = io.Copy(&want, &countingReader{left: 300_000})
	w.Go("leader", func() {
		defer stop()
		node := open("sim://leader")
		defer node.Close()
		from := NewTransport(node, Options{Timeout: 5 * time.Second, MaxInFlight: 4})
		defer from.Close()
		for acked := uint64(0); acked < all; w.Sleep(100 * time.Millisecond) {
			acked = sendPipeline(t, w, node, from, follower, acked, all)
			if acked < all {
				follower.broken++
			}
		}
		for follower.snapshot == nil {
			var resp raft.InstallSnapshotResponse
			err := from.InstallSnapshot("follower", "sim://follower", newSnapshotRequest(int64(want.Len())),
				&resp, bytes.NewReader(want.Bytes()))
			if err == nil {
				require.True(t, resp.Success)
				require.NotNil(t, follower.snapshot)
			} else {
				follower.broken++
			}
			w.Sleep(100 * time.Millisecond)
		}
	})
	require.NoError(t, w.Run(2*time.Hour), "replay with -raftqs.seed=%d", seed)
	require.EqualValues(t, all, follower.last, "replay with -raftqs.seed=%d", seed)
	require.Zero(t, follower.refused, "replay with -raftqs.seed=%d", seed)
	require.True(t, bytes.Equal(want.Bytes(), follower.snapshot), "replay with -raftqs.seed=%d", seed)
	return w.Hash(), follower.broken
}

// sendPipeline sends entries by one pipeline until that fails, or all are there, and returns the last that
// the follower has acknowledged.
func sendPipeline(
	t *testing.T, w *sim.World, node *qs.Node, from *Transport, follower *scriptedFollower, acked, all uint64,
) uint64 {
	p, err := from.AppendEntriesPipeline("follower", "sim://follower")
	if err != nil {
		return acked
	}
	defer p.Close()
	for next := acked; next < all; {
		sent := 0
		for ; sent < 3 && next < all; sent++ {
			if _, err := p.AppendEntries(newEntries(next+1, 1, 100),
				&raft.AppendEntriesResponse{}); err != nil {
				return acked
			}
			next++
		}
		for range sent {
			ctx, stop := w.WithTimeout(context.Background(), time.Minute)
			f, err := qstest.Wait(ctx, node, p.Consumer())
			stop()
			require.NoError(t, err)
			if f.Error() != nil {
				return acked
			}
			require.True(t, f.Response().Success)
			acked = f.Request().Entries[0].Index
			require.GreaterOrEqual(t, follower.last, acked, "acknowledged, and not there")
		}
	}
	return acked
}
