// Command three is a replicated counter. It runs three servers in one process, each of which is a
// raft.Raft on a node, and all of which apply the same log entries in the same order. It stops the
// leader, and the others elect a new one. The logs are in memory. See examples/kv for a complete
// store with logs on disk.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	raftqs "github.com/quicksilver-rpc/quicksilver/contrib/raft"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A counter is the state machine. Each log entry holds a number, which Apply adds to the sum.
type counter struct{ sum atomic.Int64 }

// Apply implements raft.FSM.
func (c *counter) Apply(l *raft.Log) any {
	n, err := strconv.ParseInt(string(l.Data), 10, 64)
	if err != nil {
		return err
	}
	return c.sum.Add(n)
}

// Snapshot implements raft.FSM.
func (c *counter) Snapshot() (raft.FSMSnapshot, error) { return snapshot(c.sum.Load()), nil }

// Restore implements raft.FSM.
func (c *counter) Restore(from io.ReadCloser) error {
	var n int64
	_, err := fmt.Fscan(from, &n)
	c.sum.Store(n)
	return err
}

// A snapshot is the sum. It implements raft.FSMSnapshot.
type snapshot int64

// Persist implements raft.FSMSnapshot.
func (s snapshot) Persist(sink raft.SnapshotSink) error {
	if _, err := fmt.Fprint(sink, int64(s)); err != nil {
		_ = sink.Cancel()
		return err
	}
	return sink.Close()
}

// Release implements raft.FSMSnapshot.
func (snapshot) Release() {}

// A server is one of the three servers.
type server struct {
	id    raft.ServerID
	trans *raftqs.Transport
	raft  *raft.Raft
	count counter
	stop  func()
}

// open opens the node of a server. The same node can serve the methods of your service.
func open(id raft.ServerID) *server {
	node, err := qs.Open("tcp://127.0.0.1:0", qs.Config{PeerTimeout: time.Second})
	check(err)
	s := &server{id: id, trans: raftqs.NewTransport(node, raftqs.Options{})}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- node.Serve(ctx) }()
	s.stop = func() {
		check(s.raft.Shutdown().Error()) // before the node, whose shutdown waits for raft's calls
		cancel()
		check(<-ended)
	}
	return s
}

// start starts raft. All servers bootstrap with the same configuration.
func (s *server) start(all raft.Configuration) {
	cfg := raft.DefaultConfig()
	cfg.LocalID = s.id
	cfg.HeartbeatTimeout, cfg.ElectionTimeout, cfg.LeaderLeaseTimeout = 200*time.Millisecond,
		200*time.Millisecond, 100*time.Millisecond
	cfg.Logger = hclog.NewNullLogger()
	logs, snaps := raft.NewInmemStore(), raft.NewInmemSnapshotStore() // on disk: raft-boltdb, NewFileSnapshotStore
	check(raft.BootstrapCluster(cfg, logs, logs, snaps, s.trans, all))
	r, err := raft.NewRaft(cfg, &s.count, logs, logs, snaps, s.trans)
	check(err)
	s.raft = r
}

// add adds n to the counter. It returns the sum and the server that leads.
func add(servers []*server, n int) (sum int64, leader *server) {
	for start := time.Now(); time.Since(start) < 30*time.Second; {
		for _, s := range servers {
			if s.raft.State() != raft.Leader {
				continue
			}
			f := s.raft.Apply([]byte(strconv.Itoa(n)), time.Second)
			// On an error the leader may have changed, and the entry may have been applied all the same: a real
			// program finds out by an id in the entry.
			if f.Error() == nil {
				return f.Response().(int64), s
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	log.Fatal("no leader")
	return 0, nil
}

func main() {
	var servers []*server
	var all raft.Configuration
	for _, id := range []raft.ServerID{"a", "b", "c"} {
		s := open(id)
		servers = append(servers, s)
		all.Servers = append(all.Servers, raft.Server{ID: id, Address: s.trans.LocalAddr()})
	}
	for _, s := range servers {
		s.start(all)
	}
	sum, leader := add(servers, 40)
	fmt.Println("sum:", sum)

	leader.stop()
	var rest []*server
	for _, s := range servers {
		if s != leader {
			rest = append(rest, s)
		}
	}
	sum, next := add(rest, 2)
	fmt.Println("sum:", sum, "by another leader:", next != leader)
	for _, s := range rest {
		s.stop()
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
