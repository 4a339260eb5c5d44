// Command three is a replicated counter: three servers in one process, each a raft.Raft over a node. It kills the leader and goes on. The
// logs are in memory; examples/kv is a whole store, on disks.
//
//	leader ── entries ──► follower    each server applies the same entries in the same order
//	   └───── entries ──► follower
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

// A counter is the state machine: it adds what is applied.
type counter struct{ sum atomic.Int64 }

func (c *counter) Apply(l *raft.Log) any {
	n, err := strconv.ParseInt(string(l.Data), 10, 64)
	if err != nil {
		return err
	}
	return c.sum.Add(n)
}

func (c *counter) Snapshot() (raft.FSMSnapshot, error) { return snapshot(c.sum.Load()), nil }

func (c *counter) Restore(from io.ReadCloser) error {
	var n int64
	_, err := fmt.Fscan(from, &n)
	c.sum.Store(n)
	return err
}

type snapshot int64

func (s snapshot) Persist(sink raft.SnapshotSink) error {
	if _, err := fmt.Fprint(sink, int64(s)); err != nil {
		_ = sink.Cancel()
		return err
	}
	return sink.Close()
}

func (snapshot) Release() {}

// A server is one of the three.
type server struct {
	id    raft.ServerID
	trans *raftqs.Transport
	raft  *raft.Raft
	count counter
	stop  func()
}

// open opens the node of a server. Methods of your service are served by the same node.
func open(id raft.ServerID) *server {
	node, err := qs.Open("tcp://127.0.0.1:0", qs.Config{PeerTimeout: time.Second})
	check(err)
	s := &server{id: id, trans: raftqs.NewTransport(node, raftqs.Options{})}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- node.Serve(ctx) }()
	s.stop = func() {
		check(s.raft.Shutdown().Error()) // before the node: it has calls that do not end by themselves
		cancel()
		check(<-ended)
	}
	return s
}

// start starts raft on it. The first time all servers are given the same configuration.
func (s *server) start(all raft.Configuration) {
	cfg := raft.DefaultConfig()
	cfg.LocalID = s.id
	cfg.HeartbeatTimeout, cfg.ElectionTimeout, cfg.LeaderLeaseTimeout = 200*time.Millisecond, 200*time.Millisecond, 100*time.Millisecond
	cfg.Logger = hclog.NewNullLogger()
	logs, snaps := raft.NewInmemStore(), raft.NewInmemSnapshotStore() // raft-boltdb and NewFileSnapshotStore keep them on a disk
	check(raft.BootstrapCluster(cfg, logs, logs, snaps, s.trans, all))
	r, err := raft.NewRaft(cfg, &s.count, logs, logs, snaps, s.trans)
	check(err)
	s.raft = r
}

// add adds n at the leader, whichever server that is, and returns the sum and the leader.
func add(servers []*server, n int) (sum int64, leader *server) {
	for start := time.Now(); time.Since(start) < 30*time.Second; {
		for _, s := range servers {
			if s.raft.State() != raft.Leader {
				continue
			}
			f := s.raft.Apply([]byte(strconv.Itoa(n)), time.Second)
			if f.Error() == nil { // else it has lost the lead: a real program finds out whether the entry was applied, by an id in it
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
