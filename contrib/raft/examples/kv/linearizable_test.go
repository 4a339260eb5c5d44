package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	raftqs "github.com/quicksilver-rpc/quicksilver/contrib/raft"
	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

var (
	proofTime = flag.Duration("kv.time", long.Or(4*time.Second, 30*time.Minute),
		"how `long` TestLinearizable and TestProcesses run, each")
	seedFlag = flag.Uint64("seed", uint64(time.Now().UnixNano()), "of the faults and the clients")
)

// serverEnv has the program of the tests be the server instead: it is built already, and checks its state machines.
const serverEnv = "KV_TEST_SERVER"

func TestMain(m *testing.M) {
	if os.Getenv(serverEnv) != "" {
		main()
		return
	}
	leak.Main(m)
}

// patience bounds short waits, on a busy machine.
const patience = 30 * time.Second

// A replica is a server in this process, which can end and begin again with what it has stored.
type replica struct {
	*server
	logs   *raft.InmemStore
	snaps  raft.SnapshotStore
	node   *qs.Node
	served chan error
	runs   bool
}

// A cluster is five copies. It is the directory of their addresses, too.
type cluster struct {
	t        *testing.T
	change   func(*server) // plants a bug
	election time.Duration
	silence  time.Duration // after which a peer counts as lost

	mu     sync.Mutex // guards the fields below
	copies []*replica
	addrs  map[raft.ServerID]raft.ServerAddress
}

func (c *cluster) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a, ok := c.addrs[id]; ok {
		return a, nil
	}
	return "", fmt.Errorf("no server %s", id)
}

func (c *cluster) addresses() (all []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.addrs {
		all = append(all, string(a))
	}
	return all
}

// newCluster starts five copies, which elect a leader at once, and later ones after so long without one. The caller closes it.
func newCluster(t *testing.T, election time.Duration, change func(*server)) *cluster {
	c := &cluster{t: t, change: change, election: election, silence: max(time.Second, 3*election),
		addrs: map[raft.ServerID]raft.ServerAddress{}}
	var first raft.Configuration
	for i := range 5 {
		name := fmt.Sprint("kv-", i)
		c.copies = append(c.copies, &replica{logs: raft.NewInmemStore(),
			snaps: raft.NewInmemSnapshotStore(), server: &server{name: name}})
		first.Servers = append(first.Servers,
			raft.Server{ID: raft.ServerID(name), Address: raft.ServerAddress(name)})
	}
	for _, k := range c.copies {
		c.start(k)
	}
	require.NoError(t, c.copies[0].raft.BootstrapCluster(first).Error())
	now := raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}}
	require.NoError(t, c.copies[1].transport.TimeoutNow("kv-0", "kv-0", &now, &raft.TimeoutNowResponse{}))
	return c
}

func (c *cluster) close() {
	for _, k := range c.copies {
		c.end(k)
	}
}

func openNode(t testing.TB, addr string, silence time.Duration) *qs.Node {
	node, err := qs.Open(addr, qs.Config{PeerTimeout: silence, ShutdownTimeout: -1,
		Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	return node
}

// start starts a copy, at an address of its own.
func (c *cluster) start(k *replica) {
	k.node = openNode(c.t, "tcp://127.0.0.1:0", c.silence)
	k.server = &server{name: k.name, node: k.node}
	k.transport = raftqs.NewTransport(k.node, raftqs.Options{Addresses: c, Timeout: c.silence})
	c.mu.Lock()
	c.addrs[raft.ServerID(k.name)] = raft.ServerAddress(k.node.Addr().String())
	c.mu.Unlock()
	cfg := raft.DefaultConfig()
	cfg.HeartbeatTimeout, cfg.ElectionTimeout, cfg.LeaderLeaseTimeout = c.election, c.election,
		c.election*2/3
	cfg.SnapshotThreshold, cfg.TrailingLogs, cfg.SnapshotInterval = 500, 100, 200*time.Millisecond
	cfg.LocalID, cfg.Logger = raft.ServerID(k.name), hclog.NewNullLogger()
	require.NoError(c.t, k.startRaft(cfg, k.logs, k.logs, k.snaps))
	if c.change != nil {
		c.change(k.server)
	}
	k.registerMethods(false)
	k.served = make(chan error, 1)
	go func() { k.served <- k.node.Serve(context.Background()) }()
	k.runs = true
}

// end ends a copy without a word to the others.
func (c *cluster) end(k *replica) {
	if k.runs {
		k.runs = false
		require.NoError(c.t, k.node.Close())
		<-k.served
		require.NoError(c.t, k.stop())
	}
}

// leader returns the leading copy, or any.
func (c *cluster) leader() *replica {
	for _, k := range c.copies {
		if k.runs && k.raft.State() == raft.Leader {
			return k
		}
	}
	return c.copies[0]
}

// injectFaults makes faults until ctx ends, and returns how many: a copy, mostly the leader, ends and begins again, or is cut off for
// a while. Elections get slower with pace, and so do the faults.
func (c *cluster) injectFaults(ctx context.Context, r *rand.Rand, pace time.Duration) (ended, divided int) {
	pause := func(least, more int) {
		t := time.NewTimer(pace * time.Duration(least+r.IntN(more)) * time.Millisecond)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		}
	}
	for pause(100, 200); ctx.Err() == nil; pause(200, 300) {
		k := c.copies[r.IntN(len(c.copies))]
		if r.IntN(4) > 0 {
			k = c.leader()
		}
		if ended < divided {
			ended++
			c.end(k)
			pause(50, 300)
			c.start(k)
			continue
		}
		divided++
		k.transport.DisconnectAll()
		pause(600, 600)
		k.transport.ConnectAll()
	}
	return ended, divided
}

// retrySlower calls f with a pace of 1, then 2, 4 and so on, until it reports true: where so much else runs that no leader stays in office, or nothing
// is written between two faults, everything takes longer.
func retrySlower(t *testing.T, f func(pace time.Duration) bool) {
	for pace := time.Duration(1); !f(pace); pace *= 2 {
		require.LessOrEqual(t, pace, time.Duration(16))
	}
}

// runFaults has clients use a cluster with faults for d, and returns how much was written, and the checker's verdict.
func runFaults(t *testing.T, d, pace time.Duration, change func(*server)) (writes int, err error) {
	t.Logf("seed %d, pace %d", *seedFlag, pace)
	c := newCluster(t, pace*300*time.Millisecond, change)
	defer c.close()
	node := openNode(t, "tcp://", c.silence)
	defer node.Close()
	require.Eventually(t, func() bool { return c.leader().raft.State() == raft.Leader }, patience,
		time.Millisecond)
	deadline := time.Now().Add(d)
	ended, divided := 0, 0
	faults := rand.New(rand.NewPCG(*seedFlag, uint64(pace)))
	for round := uint64(1); time.Now().Before(deadline); round++ { // porcupine's time grows faster than a history
		ctx, stop := context.WithTimeout(context.Background(), min(time.Until(deadline), 20*time.Second))
		h := newHistory(4)
		var clients sync.WaitGroup
		for i := range 8 {
			clients.Go(func() {
				h.runClient(ctx, i, NewClient(node, c.addresses),
					rand.New(rand.NewPCG(*seedFlag+round, uint64(i+1))))
			})
		}
		e, p := c.injectFaults(ctx, faults, pace)
		ended, divided = ended+e, divided+p
		clients.Wait()
		stop()
		h.readAll(NewClient(node, c.addresses)) // what was acknowledged is there
		t.Log(h.summary())
		writes += h.writes
		if err := h.checkLinearizable(patience); err != nil {
			return writes, err
		}
	}
	t.Logf("%d ended, %d cut off", ended, divided)
	return writes, nil
}

// TestLinearizable checks that the answers that clients get while servers end and are cut off are
// those that a single copy could have given.
func TestLinearizable(t *testing.T) {
	t.Parallel()
	retrySlower(t, func(pace time.Duration) bool {
		writes, err := runFaults(t, max(*proofTime, pace*4*time.Second), pace, nil)
		require.NoError(t, err)
		return writes > 0
	})
}

// TestPlantedBugs checks that the checker finds a write that is acknowledged before it is
// committed, and a read of a leader that does not confirm that it is still the leader.
func TestPlantedBugs(t *testing.T) {
	for name, plant := range map[string]func(*server){
		"acknowledged before commit": func(s *server) {
			s.commit = func(raft.ApplyFuture) (any, error) { return result{Done: true}, nil }
		},
		"stale read": func(s *server) { s.verify = func() error { return nil } },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			retrySlower(t, func(pace time.Duration) bool {
				_, err := runFaults(t, (2*pace-1)*2*time.Second, pace, plant) // each time with more faults
				if err != nil {
					require.ErrorIs(t, err, errNotLinearizable)
				}
				return err != nil
			})
		})
	}
}
