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

// openKind returns a transport of a kind, which goes with the benchmark, and what breaks its connections.
func openKind(t testing.TB, kind string) (own raft.Transport, kill func()) {
	if kind == "raft-tcp" {
		tcp, err := raft.NewTCPTransport("127.0.0.1:0", nil, 3, 10*time.Second, io.Discard)
		require.NoError(t, err)
		kill = func() {
			require.NoError(t, tcp.Close())
			tcp.CloseStreams() // which Close leaves
		}
		t.Cleanup(kill)
		return tcp, kill
	}
	var node *Transport
	open := openNode(t, address(strings.TrimPrefix(kind, "qs-")), qs.Config{}, func(n *qs.Node) { node = NewTransport(n, Options{}) })
	t.Cleanup(func() { require.NoError(t, node.Close()) })
	return node, func() { require.NoError(t, open.Close()) }
}

// A sinkhole is a state machine that keeps nothing.
type sinkhole struct{}

func (sinkhole) Apply(*raft.Log) any                 { return nil }
func (sinkhole) Snapshot() (raft.FSMSnapshot, error) { return &frozen{}, nil }
func (sinkhole) Restore(from io.ReadCloser) error {
	_, err := io.Copy(io.Discard, from)
	return err
}

// A rival is a server of a cluster of some kind.
type rival struct {
	raft *raft.Raft
	kill func() // breaks its connections
}

// openRivals starts servers with in-memory logs, and returns them, the leader first, when it has committed an entry.
func openRivals(b *testing.B, kind string, n int) []rival {
	all := make([]rival, n)
	trans, cfgs := make([]raft.Transport, n), make([]*raft.Config, n)
	var configuration raft.Configuration
	for i := range all {
		trans[i], all[i].kill = openKind(b, kind)
		cfgs[i] = raft.DefaultConfig()
		cfgs[i].LocalID, cfgs[i].Logger = raft.ServerID(fmt.Sprint("server", i)), hclog.NewNullLogger()
		configuration.Servers = append(configuration.Servers, raft.Server{ID: cfgs[i].LocalID, Address: trans[i].LocalAddr()})
	}
	for i := range all {
		logs, snaps := raft.NewInmemStore(), raft.NewInmemSnapshotStore()
		require.NoError(b, raft.BootstrapCluster(cfgs[i], logs, logs, snaps, trans[i], configuration))
		r, err := raft.NewRaft(cfgs[i], sinkhole{}, logs, logs, snaps, trans[i])
		require.NoError(b, err)
		b.Cleanup(func() { require.NoError(b, r.Shutdown().Error()) })
		all[i].raft = r
	}
	leader := leaderOf(b, all)
	all[0], all[leader] = all[leader], all[0]
	return all
}

// leaderOf waits for a leader that commits an entry.
func leaderOf(b *testing.B, all []rival) (leader int) {
	require.Eventually(b, func() bool {
		leader = slices.IndexFunc(all, func(r rival) bool { return r.raft.State() == raft.Leader })
		return leader >= 0 && all[leader].raft.Apply(nil, time.Second).Error() == nil
	}, patience, time.Millisecond)
	return leader
}

// BenchmarkFailover is how long it takes until an entry is committed again when the leader ends without a word, with five servers and raft's
// default configuration.
//
//	go test -run - -bench Failover -benchtime 20x
func BenchmarkFailover(b *testing.B) {
	for _, kind := range kinds {
		b.Run(kind, func(b *testing.B) {
			var took []time.Duration
			for range b.N {
				all := openRivals(b, kind, 5)
				begin := time.Now()
				require.NoError(b, all[0].raft.Shutdown().Error()) // it hands nothing over
				all[0].kill()
				leaderOf(b, all[1:])
				took = append(took, time.Since(begin))
				for _, r := range all {
					require.NoError(b, r.raft.Shutdown().Error())
				}
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Milliseconds()), "ms-p50")
			b.ReportMetric(float64(took[len(took)-1].Milliseconds()), "ms-max")
		})
	}
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
						leader := openRivals(b, kind, servers)[0].raft
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
			from, _ := openKind(b, kind)
			to, _ := openKind(b, kind)
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
			from, _ := openKind(b, kind)
			to, _ := openKind(b, kind)
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

// BenchmarkPipeline is a request with 8 entries of 100 bytes that is answered at once, by a pipeline, and by calls of a method with futures, which
// do not keep the order, so many in flight. It is why a pipeline is a Duplex.
func BenchmarkPipeline(b *testing.B) {
	for _, scheme := range []string{"tcp", "sm"} {
		for _, window := range []int{2, 16} {
			open := func(b *testing.B) (from, to *Transport) {
				from, to = openPair(b, scheme, Options{MaxInFlight: window})
				answer(b, to, func(raft.RPC) (any, error) { return &raft.AppendEntriesResponse{Success: true}, nil })
				return from, to
			}
			request := entries(101, 8, 100)
			b.Run(fmt.Sprintf("%s/%d/duplex", scheme, window), func(b *testing.B) {
				from, to := open(b)
				p, err := from.AppendEntriesPipeline("to", to.LocalAddr())
				require.NoError(b, err)
				defer p.Close()
				done := make(chan error, 1)
				go func() {
					for range b.N {
						if err := (<-p.Consumer()).Error(); err != nil {
							done <- err
							return
						}
					}
					done <- nil
				}()
				b.ResetTimer()
				for range b.N {
					_, err := p.AppendEntries(request, &raft.AppendEntriesResponse{})
					require.NoError(b, err)
				}
				require.NoError(b, <-done)
			})
			b.Run(fmt.Sprintf("%s/%d/futures", scheme, window), func(b *testing.B) {
				from, to := open(b)
				peer, err := from.peer(b.Context(), "to", to.LocalAddr())
				require.NoError(b, err)
				flight := make(chan *qs.Future[raft.AppendEntriesResponse], window-1)
				done := make(chan error, 1)
				go func() {
					for f := range flight {
						if _, err := f.Wait(b.Context()); err != nil {
							done <- err
							return
						}
					}
					done <- nil
				}()
				b.ResetTimer()
				for range b.N {
					flight <- from.append.Go(b.Context(), peer, *request)
				}
				close(flight)
				require.NoError(b, <-done)
			})
		}
	}
}
