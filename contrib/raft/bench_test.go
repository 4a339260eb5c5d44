package raftqs

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// kinds are what is compared: raftqs, and raft's own transport over TCP.
var kinds = []string{"qs-tcp", "qs-sm", "raft-tcp"}

// openKind returns a transport of a kind. It goes with the benchmark.
func openKind(t testing.TB, kind string) raft.Transport {
	if kind == "raft-tcp" {
		own, err := raft.NewTCPTransport("127.0.0.1:0", nil, 3, 10*time.Second, io.Discard)
		require.NoError(t, err)
		t.Cleanup(func() {
			require.NoError(t, own.Close())
			own.CloseStreams() // which Close leaves
		})
		return own
	}
	var own *Transport
	openNode(t, address(strings.TrimPrefix(kind, "qs-")), qs.Config{}, func(n *qs.Node) { own = NewTransport(n, Options{}) })
	t.Cleanup(func() { require.NoError(t, own.Close()) })
	return own
}

// A sinkhole is a state machine that keeps nothing.
type sinkhole struct{}

func (sinkhole) Apply(*raft.Log) any                 { return nil }
func (sinkhole) Snapshot() (raft.FSMSnapshot, error) { return &frozen{}, nil }
func (sinkhole) Restore(from io.ReadCloser) error {
	_, err := io.Copy(io.Discard, from)
	return err
}

// openLeader starts servers with in-memory logs, and returns the one that leads.
func openLeader(b *testing.B, kind string, n int) *raft.Raft {
	type server struct {
		cfg   *raft.Config
		trans raft.Transport
	}
	var all []server
	var configuration raft.Configuration
	for i := range n {
		cfg := raft.DefaultConfig()
		cfg.LocalID, cfg.Logger = raft.ServerID(fmt.Sprint("server", i)), hclog.NewNullLogger()
		all = append(all, server{cfg, openKind(b, kind)})
		configuration.Servers = append(configuration.Servers, raft.Server{ID: cfg.LocalID, Address: all[i].trans.LocalAddr()})
	}
	var rafts []*raft.Raft
	for _, s := range all {
		logs, snaps := raft.NewInmemStore(), raft.NewInmemSnapshotStore()
		require.NoError(b, raft.BootstrapCluster(s.cfg, logs, logs, snaps, s.trans, configuration))
		r, err := raft.NewRaft(s.cfg, sinkhole{}, logs, logs, snaps, s.trans)
		require.NoError(b, err)
		b.Cleanup(func() { require.NoError(b, r.Shutdown().Error()) })
		rafts = append(rafts, r)
	}
	var leader *raft.Raft
	require.Eventually(b, func() bool {
		i := slices.IndexFunc(rafts, func(r *raft.Raft) bool { return r.State() == raft.Leader })
		if i >= 0 {
			leader = rafts[i]
		}
		return i >= 0 && leader.Barrier(time.Second).Error() == nil
	}, patience, 10*time.Millisecond)
	return leader
}

// BenchmarkCommits is how long a commit takes with an in-memory log, all servers in this process.
//
//	go test -run - -bench Commits -benchtime 2s
func BenchmarkCommits(b *testing.B) {
	for _, servers := range []int{3, 5} {
		for _, clients := range []int{1, 16, 256} {
			for _, size := range []int{100, 4096} {
				for _, kind := range kinds {
					b.Run(fmt.Sprintf("%d/%dclients/%dB/%s", servers, clients, size, kind), func(b *testing.B) {
						leader := openLeader(b, kind, servers)
						data := make([]byte, size)
						var left atomic.Int64
						left.Store(int64(b.N))
						var all sync.WaitGroup
						b.ResetTimer()
						for range clients {
							all.Go(func() {
								for left.Add(-1) >= 0 {
									if err := leader.Apply(data, patience).Error(); err != nil {
										b.Error(err)
										return
									}
								}
							})
						}
						all.Wait()
						b.StopTimer()
						b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
					})
				}
			}
		}
	}
}

// BenchmarkHeartbeatUnderSnapshot is the round trip of heartbeats while a snapshot of 256 MiB is on its way, and its worst percent; the snapshot
// comes from memory, and the follower writes it nowhere.
func BenchmarkHeartbeatUnderSnapshot(b *testing.B) {
	for _, kind := range kinds {
		b.Run(kind, func(b *testing.B) {
			from, to := openKind(b, kind), openKind(b, kind)
			to.SetHeartbeatHandler(func(rpc raft.RPC) { rpc.Respond(&raft.AppendEntriesResponse{Success: true}, nil) })
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				for {
					select {
					case rpc := <-to.Consumer():
						_, err := io.Copy(io.Discard, rpc.Reader)
						rpc.Respond(&raft.InstallSnapshotResponse{Success: true}, err)
					case <-stop:
						return
					}
				}
			}()
			var took []time.Duration
			var moved time.Duration
			for b.Loop() {
				done := make(chan error, 1)
				begin := time.Now()
				go func() {
					done <- from.InstallSnapshot("to", to.LocalAddr(), snapshotOf(256<<20), &raft.InstallSnapshotResponse{}, &counter{left: 256 << 20})
				}()
				for len(done) == 0 {
					at := time.Now()
					require.NoError(b, from.AppendEntries("to", to.LocalAddr(), heartbeatRequest, &raft.AppendEntriesResponse{}))
					took = append(took, time.Since(at))
					time.Sleep(time.Millisecond)
				}
				require.NoError(b, <-done)
				moved += time.Since(begin)
			}
			close(stop)
			<-stopped
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs-p50")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "µs-p99")
			b.ReportMetric(256*float64(b.N)/moved.Seconds(), "MiB/s")
		})
	}
}

// BenchmarkSnapshotMemory is by how much a process grows, in MiB, while it sends itself a snapshot of 1 GiB: what both sides hold.
func BenchmarkSnapshotMemory(b *testing.B) {
	for _, kind := range kinds {
		b.Run(kind, func(b *testing.B) {
			from, to := openKind(b, kind), openKind(b, kind)
			const size = 1 << 30
			for b.Loop() {
				before, most := resident(b), int64(0)
				done := make(chan error, 1)
				go func() {
					done <- from.InstallSnapshot("to", to.LocalAddr(), snapshotOf(size), &raft.InstallSnapshotResponse{}, &counter{left: size})
				}()
				rpc := <-to.Consumer()
				for {
					_, err := io.CopyN(io.Discard, rpc.Reader, 8<<20)
					most = max(most, resident(b)-before)
					if err == io.EOF {
						break
					}
					require.NoError(b, err)
				}
				rpc.Respond(&raft.InstallSnapshotResponse{Success: true}, nil)
				require.NoError(b, <-done)
				b.ReportMetric(float64(most)/(1<<20), "MiB-grown")
			}
		})
	}
}

// resident returns how much memory this process has resident, in bytes.
func resident(b *testing.B) int64 {
	text, err := os.ReadFile("/proc/self/statm")
	require.NoError(b, err)
	var all, pages int64
	_, err = fmt.Sscan(string(text), &all, &pages)
	require.NoError(b, err)
	return pages * int64(os.Getpagesize())
}
