package raftqs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A recordFSM is a state machine that keeps what was applied, in order. What begins with the same 8
// bytes is the same, and kept once: a test applies it again when its outcome is unknown.
type recordFSM struct {
	mu      sync.Mutex // guards the fields below
	applied [][]byte
}

func (r *recordFSM) Apply(l *raft.Log) any {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.ContainsFunc(r.applied, func(a []byte) bool { return bytes.Equal(a[:8], l.Data[:8]) }) {
		r.applied = append(r.applied, l.Data)
	}
	return len(r.applied)
}

func (r *recordFSM) Snapshot() (raft.FSMSnapshot, error) {
	return &fsmSnapshot{r.all()}, nil
}

func (r *recordFSM) Restore(from io.ReadCloser) error {
	b, err := io.ReadAll(from)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.applied = nil; len(b) > 0; {
		n := 4 + binary.BigEndian.Uint32(b)
		r.applied, b = append(r.applied, b[4:n:n]), b[n:]
	}
	return nil
}

func (r *recordFSM) all() [][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.applied)
}

type fsmSnapshot struct{ applied [][]byte }

func (f *fsmSnapshot) Persist(sink raft.SnapshotSink) error {
	var b []byte
	for _, a := range f.applied {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(a))), a...)
	}
	if _, err := sink.Write(b); err != nil {
		_ = sink.Cancel()
		return err
	}
	return sink.Close()
}

func (*fsmSnapshot) Release() {}

// A member is one server of a cluster.
type member struct {
	id    raft.ServerID
	t     *Transport
	raft  *raft.Raft
	fsm   *recordFSM
	logs  *raft.InmemStore
	snaps raft.SnapshotStore
}

// A cluster is servers of raft in this process, each with a node of its own.
type cluster struct {
	t       testing.TB
	cfg     *raft.Config
	scheme  string
	all     []*member
	stopped map[*member]bool
	next    uint64 // the number of the next entry
}

// newCluster starts n servers of one configuration.
func newCluster(t testing.TB, scheme string, n int, change func(*raft.Config)) *cluster {
	cfg := raft.DefaultConfig()
	pace := time.Duration(1)
	if raceflag.Enabled { // else a machine with two cores elects one leader after the other
		pace = 4
	}
	cfg.HeartbeatTimeout, cfg.ElectionTimeout = pace*300*time.Millisecond, pace*300*time.Millisecond
	cfg.LeaderLeaseTimeout = pace * 200 * time.Millisecond
	cfg.CommitTimeout = 5 * time.Millisecond
	cfg.Logger = hclog.NewNullLogger()
	if change != nil {
		change(cfg)
	}
	c := &cluster{t: t, cfg: cfg, scheme: scheme, stopped: map[*member]bool{}}
	t.Cleanup(func() {
		for _, m := range c.all {
			c.stop(m)
		}
	})
	var servers []raft.Server
	for range n {
		m := c.add()
		servers = append(servers, raft.Server{ID: m.id, Address: m.t.LocalAddr()})
	}
	for _, m := range c.all {
		require.NoError(t, raft.BootstrapCluster(memberConfig(cfg, m.id), m.logs, m.logs, m.snaps, m.t,
			raft.Configuration{Servers: servers}))
		c.start(m)
	}
	return c
}

func memberConfig(cfg *raft.Config, id raft.ServerID) *raft.Config {
	own := *cfg
	own.LocalID = id
	return &own
}

// add opens another server, which does not run yet.
func (c *cluster) add() *member {
	m := &member{id: raft.ServerID(fmt.Sprint("server", len(c.all))), fsm: &recordFSM{},
		logs: raft.NewInmemStore(), snaps: raft.NewInmemSnapshotStore()}
	openNode(c.t, listenAddr(c.scheme), qs.Config{},
		func(n *qs.Node) { m.t = NewTransport(n, Options{Timeout: 2 * time.Second}) })
	c.all = append(c.all, m)
	return m
}

func (c *cluster) start(m *member) {
	r, err := raft.NewRaft(memberConfig(c.cfg, m.id), m.fsm, m.logs, m.logs, m.snaps, m.t)
	require.NoError(c.t, err)
	m.raft = r
}

// stop ends a server.
func (c *cluster) stop(m *member) {
	if m.raft != nil && !c.stopped[m] {
		c.stopped[m] = true
		require.NoError(c.t, m.raft.Shutdown().Error())
	}
}

// leader waits for one server to lead, and for the most of those that run to follow it.
func (c *cluster) leader() *member {
	c.t.Helper()
	var leader *member
	eventually(c.t, func() error {
		leader = nil
		follow := map[raft.ServerID]int{}
		for _, m := range c.running() {
			if _, id := m.raft.LeaderWithID(); id != "" {
				follow[id]++
			}
		}
		for _, m := range c.running() {
			if m.raft.State() == raft.Leader && follow[m.id] > len(c.all)/2 {
				leader = m
			}
		}
		if leader == nil {
			return fmt.Errorf("no server leads the most of %d", len(c.all))
		}
		return nil
	})
	return leader
}

// waitForCandidate waits until m asks for votes.
func waitForCandidate(t testing.TB, m *member) {
	t.Helper()
	eventually(t, func() error {
		if state := m.raft.State(); state != raft.Candidate {
			return fmt.Errorf("%s is %v", m.id, state)
		}
		return nil
	})
}

// eventually calls f until it returns nil, for patience at most. Other than require.Eventually it
// calls f on the goroutine of the test, which f may end, and nothing runs on when the test has ended.
func eventually(t testing.TB, f func() error) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for err := f(); err != nil; err = f() {
		select {
		case <-tick.C:
		case <-limit.C:
			require.NoError(t, err)
		}
	}
}

func (c *cluster) running() (all []*member) {
	for _, m := range c.all {
		if m.raft != nil && !c.stopped[m] {
			all = append(all, m)
		}
	}
	return all
}

func (c *cluster) followers() (all []*member) {
	leader := c.leader()
	return slices.DeleteFunc(c.running(), func(m *member) bool { return m == leader })
}

// retryUntilLed repeats what may fail because of a new leader: on a loaded machine that happens at any
// time.
func (c *cluster) retryUntilLed(f func(leader *member) error) {
	c.t.Helper()
	eventually(c.t, func() error { return f(c.leader()) })
}

// apply has the leader apply n entries of a size, and returns when they are committed.
func (c *cluster) apply(n, size int) {
	c.t.Helper()
	first := c.next
	c.next += uint64(n)
	c.retryUntilLed(func(leader *member) error {
		var all []raft.ApplyFuture
		for i := first; i < c.next; i++ {
			data := make([]byte, max(size, 8))
			binary.BigEndian.PutUint64(data, i)
			all = append(all, leader.raft.Apply(data, patience))
		}
		for _, f := range all {
			if err := f.Error(); err != nil {
				return err
			}
		}
		return nil
	})
}

// waitForApplied waits until all that run have applied the same n entries.
func (c *cluster) waitForApplied(n int) {
	c.t.Helper()
	for _, m := range c.running() {
		eventually(c.t, func() error {
			if got := len(m.fsm.all()); got != n {
				return fmt.Errorf("%s has applied %d entries of %d", m.id, got, n)
			}
			return nil
		})
	}
	want := c.all[slices.Index(c.all, c.running()[0])].fsm.all()
	for _, m := range c.running() {
		for i, got := range m.fsm.all() {
			require.True(c.t, bytes.Equal(want[i], got), "%s: entry %d", m.id, i)
		}
	}
}

// partition cuts the connections between two halves, in both directions; heal undoes it.
func (c *cluster) partition(left []*member) {
	for _, a := range c.all {
		for _, b := range c.all {
			if slices.Contains(left, a) != slices.Contains(left, b) {
				a.t.Disconnect(b.t.LocalAddr())
			}
		}
	}
}

func (c *cluster) heal() {
	for _, a := range c.all {
		for _, b := range c.all {
			a.t.Connect(b.t.LocalAddr(), nil)
		}
	}
}

// eachCluster runs a scenario with 3 and 5 servers over each transport.
func eachCluster(t *testing.T, change func(*raft.Config), f func(c *cluster)) {
	t.Parallel()
	for _, scheme := range schemes {
		for _, n := range []int{3, 5} {
			t.Run(fmt.Sprint(scheme, "/", n), func(t *testing.T) {
				t.Parallel()
				f(newCluster(t, scheme, n, change))
			})
		}
	}
}

// TestReplicates checks that the leader's entries are applied everywhere, in one order, also
// entries larger than one request.
func TestReplicates(t *testing.T) {
	eachCluster(t, nil, func(c *cluster) {
		c.apply(200, 100)
		c.apply(6, 300<<10)
		c.waitForApplied(206)
		c.retryUntilLed(func(leader *member) error { return leader.raft.Barrier(patience).Error() })
		c.retryUntilLed(func(leader *member) error { return leader.raft.VerifyLeader().Error() })
	})
}

// TestLeaderEnds checks that another leader continues, and the entries of the first one stay.
func TestLeaderEnds(t *testing.T) {
	eachCluster(t, nil, func(c *cluster) {
		c.apply(50, 100)
		was := c.leader()
		c.stop(was)
		require.NotSame(c.t, was, c.leader())
		c.apply(50, 100)
		c.waitForApplied(100)
	})
}

// TestPartitionedLeader checks that a leader that is cut off steps down and commits nothing, the
// others continue, and it then applies their entries.
func TestPartitionedLeader(t *testing.T) {
	eachCluster(t, nil, func(c *cluster) {
		c.apply(20, 100)
		was := c.leader()
		c.partition([]*member{was})
		lost := was.raft.Apply([]byte("never committed"), patience)
		eventually(c.t, func() error {
			if was.raft.State() == raft.Leader {
				return errors.New("the server that was cut off still leads")
			}
			return nil
		})
		require.Error(c.t, lost.Error())
		require.Error(c.t, was.raft.VerifyLeader().Error())
		require.NotSame(c.t, was, c.leader())
		c.apply(20, 100)
		c.heal()
		c.waitForApplied(40)
	})
}

// TestFollowerPartitioned checks that a follower that is cut off asks for votes by RequestPreVote and
// leaves its term alone, so that it does not depose the leader when it is back; then it gets the
// entries that it missed.
func TestFollowerPartitioned(t *testing.T) {
	eachCluster(t, nil, func(c *cluster) {
		c.apply(20, 100)
		away := c.followers()[0]
		c.partition([]*member{away})
		waitForCandidate(c.t, away)
		term := away.raft.CurrentTerm()
		c.apply(20, 100)
		waitForCandidate(c.t, away)
		require.Equal(c.t, term, away.raft.CurrentTerm())
		c.heal()
		c.waitForApplied(40)
	})
}

// TestInstallsSnapshot checks that a server that needs entries that the leader has no more gets a
// snapshot, larger than the read-ahead, and then entries.
func TestInstallsSnapshot(t *testing.T) {
	compact := func(cfg *raft.Config) { cfg.TrailingLogs = 1 }
	eachCluster(t, compact, func(c *cluster) {
		away := c.followers()[0]
		c.partition([]*member{away})
		c.apply(24, 256<<10)
		for _, m := range c.all { // any of them may become the leader, and has the last entries only then
			if m != away {
				eventually(c.t, func() error {
					if err := m.raft.Snapshot().Error(); err != nil {
						return err
					}
					if first, err := m.logs.FirstIndex(); err != nil || first <= 20 {
						return fmt.Errorf("the log of %s begins with entry %d: %v", m.id, first, err)
					}
					return nil
				})
			}
		}
		c.heal()
		c.apply(5, 100)
		c.waitForApplied(29)
		list, err := away.snaps.List()
		require.NoError(c.t, err)
		require.NotEmpty(c.t, list)
	})
}

// TestTransfersLeadership checks that TimeoutNow makes the chosen server the leader, under load.
func TestTransfersLeadership(t *testing.T) {
	eachCluster(t, nil, func(c *cluster) {
		c.apply(20, 100)
		next := c.followers()[1]
		c.retryUntilLed(func(leader *member) error {
			if leader == next {
				return nil
			}
			return leader.raft.LeadershipTransferToServer(next.id, next.t.LocalAddr()).Error()
		})
		c.apply(20, 100)
		c.waitForApplied(40)
	})
}

// TestReplacesMember checks that a new server gets everything, an old one is removed, and the
// others continue without it.
func TestReplacesMember(t *testing.T) {
	eachCluster(t, nil, func(c *cluster) {
		c.apply(20, 100)
		old := c.followers()[0]
		m := c.add()
		c.start(m)
		c.retryUntilLed(func(leader *member) error {
			return leader.raft.AddVoter(m.id, m.t.LocalAddr(), 0,
				patience).Error()
		})
		c.retryUntilLed(func(leader *member) error {
			return leader.raft.RemoveServer(old.id, 0,
				patience).Error()
		})
		c.stop(old)
		c.apply(20, 100)
		c.waitForApplied(40)
		require.Len(c.t, c.leader().raft.GetConfiguration().Configuration().Servers, len(c.all)-1)
	})
}
