package raftqs

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// kinds are what is compared: raftqs, and raft's own transport over TCP.
var kinds = []string{"qs-tcp", "qs-sm", "raft-tcp"}

// openTransport returns a transport of a kind that ends with the process.
func openTransport(kind string) raft.Transport {
	if kind == "raft-tcp" {
		tcp, err := raft.NewTCPTransport("127.0.0.1:0", nil, 3, 10*time.Second, io.Discard)
		if err != nil {
			panic(err)
		}
		return tcp
	}
	node, err := qs.Open(listenAddr(strings.TrimPrefix(kind, "qs-")),
		qs.Config{PeerTimeout: 2 * time.Second, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	t := NewTransport(node, Options{})
	go func() { _ = node.Serve(context.Background()) }()
	return t
}

// A discardFSM is a state machine that keeps nothing.
type discardFSM struct{}

func (discardFSM) Apply(*raft.Log) any                 { return nil }
func (discardFSM) Snapshot() (raft.FSMSnapshot, error) { return &fsmSnapshot{}, nil }
func (discardFSM) Restore(from io.ReadCloser) error {
	_, err := io.Copy(io.Discard, from)
	return err
}

// median returns the middle of several figures.
func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}

// BenchmarkCommits is how many entries a cluster commits per second: each server a process of its
// own, over loopback, clients in the process of the leader. An iteration is a turn of 300 ms for
// each kind, one after the other; the figures are medians.
//
//	go test -run - -bench Commits -benchtime 5x -timeout 30m
func BenchmarkCommits(b *testing.B) {
	for _, log := range []string{"memory", "bbolt"} {
		for _, servers := range []int{3, 5} {
			b.Run(fmt.Sprintf("%s/%d", log, servers), func(b *testing.B) {
				var all []fleet // started by the first benchmark that runs
				for _, clients := range []int{1, 16, 256} {
					for _, size := range []int{100, 4096} {
						b.Run(fmt.Sprintf("%dclients/%dB", clients, size), func(inner *testing.B) {
							for i := len(all); i < len(kinds); i++ {
								dir := ""
								if log == "bbolt" {
									dir = b.TempDir()
								}
								all = append(all, startFleet(b, kinds[i], servers, dir))
							}
							rates := make([][]float64, len(kinds))
							for inner.Loop() {
								for i, f := range all {
									rates[i] = append(rates[i],
										f.rate(inner,
											command{Do: "load", Clients: clients, Size: size,
												For: 300 * time.Millisecond}))
								}
							}
							report(inner, rates, "commits/s")
						})
					}
				}
			})
		}
	}
}

// report reports the median of each kind, and what part of that of raft's own transport the first
// is.
func report(b *testing.B, figures [][]float64, unit string) {
	last := len(figures) - 1
	for i := range figures {
		b.ReportMetric(median(figures[i]), kinds[i]+"-"+unit)
	}
	b.ReportMetric(median(figures[0])/median(figures[last]), unit+"-ratio")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkFailover is how long it takes until an entry is committed again when the leader's
// process is killed: five servers, each a process, with raft's default configuration. An iteration
// is one kill for each kind.
//
//	go test -run - -bench Failover -benchtime 20x -timeout 30m
func BenchmarkFailover(b *testing.B) {
	took := make([][]float64, len(kinds))
	for b.Loop() {
		for i, kind := range kinds {
			f := startFleet(b, kind, 5, "")
			leader := f.leader(b)
			begun := time.Now()
			f[leader].kill()
			f.leader(b)
			took[i] = append(took[i], float64(time.Since(begun).Milliseconds()))
			f.stop()
		}
	}
	report(b, took, "ms")
	for i, kind := range kinds {
		b.ReportMetric(slices.Max(took[i]), kind+"-ms-max")
	}
}

// startSnapshot starts two processes between which snapshots go.
func startSnapshot(b *testing.B, kind string) (from, to *server) {
	from, to = startServer(b, kind, 0, ""), startServer(b, kind, 1, "")
	require.Empty(b, to.do(b, command{Do: "receive"}).Error)
	return from, to
}

// BenchmarkHeartbeatUnderSnapshot is the round trip of heartbeats while a snapshot of 256 MiB goes
// from one process to another, which has nothing else to do with it. The snapshot comes from
// memory. An iteration is one snapshot for each kind; the figures are of all heartbeats.
//
//	go test -run - -bench HeartbeatUnderSnapshot -benchtime 31x
func BenchmarkHeartbeatUnderSnapshot(b *testing.B) {
	const size = 256 << 20
	froms, tos := make([]*server, len(kinds)), make([]*server, len(kinds))
	for i, kind := range kinds {
		froms[i], tos[i] = startSnapshot(b, kind)
	}
	took, moved := make([][]float64, len(kinds)), make([][]float64, len(kinds))
	for b.Loop() {
		for i := range kinds {
			begun := time.Now()
			r := froms[i].do(b, command{Do: "send", To: tos[i].addr, Size: size})
			require.Empty(b, r.Error)
			moved[i] = append(moved[i], size/float64(1<<20)/time.Since(begun).Seconds())
			for _, µs := range r.Micros {
				took[i] = append(took[i], float64(µs))
			}
		}
	}
	report(b, took, "µs-p50")
	report(b, moved, "MiB/s")
	worst := make([][]float64, len(kinds))
	for i := range kinds { // report has sorted them
		worst[i] = []float64{took[i][len(took[i])*99/100]}
	}
	report(b, worst, "µs-p99")
}

// BenchmarkSnapshotMemory is by how much the resident memory of two processes grows, in MiB, while
// a snapshot of 1 GiB goes from one to the other, at the most.
//
//	go test -run - -bench SnapshotMemory -benchtime 3x
func BenchmarkSnapshotMemory(b *testing.B) {
	sent, received := make([][]float64, len(kinds)), make([][]float64, len(kinds))
	for b.Loop() {
		for i, kind := range kinds {
			from, to := startSnapshot(b, kind)
			require.Empty(b, from.do(b, command{Do: "send", To: to.addr, Size: 1 << 30}).Error)
			sent[i] = append(sent[i], float64(from.do(b, command{Do: "grown"}).Grown)/(1<<20))
			received[i] = append(received[i], float64(to.do(b, command{Do: "grown"}).Grown)/(1<<20))
			fleet{from, to}.stop()
		}
	}
	for i, kind := range kinds {
		b.ReportMetric(slices.Max(sent[i]), kind+"-leader-MiB")
		b.ReportMetric(slices.Max(received[i]), kind+"-follower-MiB")
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkPipeline is a request with 8 entries of 100 bytes that is answered at once, by a
// pipeline, and by calls of a method with futures, which do not keep the order, so many in flight.
// It is why a pipeline has streams.
func BenchmarkPipeline(b *testing.B) {
	for _, scheme := range []string{"tcp", "sm"} {
		for _, window := range []int{2, 16} {
			open := func(b *testing.B) (from, to *Transport) {
				from, to = openPair(b, scheme, Options{MaxInFlight: window})
				answerRequests(b, to, func(raft.RPC) (any,
					error) {
					return &raft.AppendEntriesResponse{Success: true}, nil
				})
				return from, to
			}
			request := newEntries(101, 8, 100)
			b.Run(fmt.Sprintf("%s/%d/streams", scheme, window), func(b *testing.B) {
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
				peer, err := from.peerFor(b.Context(), "to", to.LocalAddr())
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
