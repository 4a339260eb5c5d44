package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	raftqs "github.com/quicksilver-rpc/quicksilver/contrib/raft"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// The store's methods. A server that is not the leader rejects the methods that require a leader.
// The error's detail is a Redirect.
var (
	Put    = qs.Define[PutIn, uint64]("kv/put") // returns the index of the log entry
	Get    = qs.Define[GetIn, GetOut]("kv/get", qs.Idempotent())
	Watch  = qs.DefineStream[WatchIn, Change]("kv/watch") // streams the changes that the called server applies after the call has begun
	Status = qs.Define[struct{}, StatusOut]("kv/status", qs.Idempotent())
	Join   = qs.Define[string, struct{}]("kv/join", qs.Idempotent())   // makes a member of the group a voter
	Remove = qs.Define[string, struct{}]("kv/remove", qs.Idempotent()) // removes a server whose process has terminated permanently
	// Isolate disconnects a server that has the flag -faults from the other servers, or reconnects
	// it. Clients can still reach it.
	Isolate = qs.Define[bool, struct{}]("kv/isolate")
)

// A PutIn is the input of Put.
type PutIn struct {
	Key, Value string
	Delete     bool
	If         *string // compare and swap: only if the key has this value; a missing key has the value ""
}

// A GetIn is the input of Get. With Stale set, any server answers from its own copy. Otherwise only
// the leader answers, and the read is linearizable.
type GetIn struct {
	Key   string
	Stale bool
}

// A GetOut is the output of Get.
type GetOut struct {
	Value string
	Found bool
	Index uint64 // index of the last entry that the server has applied
}

// A WatchIn is the input of Watch.
type WatchIn struct{ Prefix string }

// A StatusOut describes a server.
type StatusOut struct {
	Name, State, Leader string
	Term, Applied       uint64
	Servers             []string
}

// A Redirect is the detail of a rejection. It holds the leader's address, or "" if the server knows
// no leader.
type Redirect struct{ Leader string }

// errDiffers is the error code of a Put whose If did not match.
const errDiffers = qs.Code(200)

// A server is one replica of the store.
type server struct {
	name           string
	node           *qs.Node
	transport      *raftqs.Transport
	raft           *raft.Raft
	store          *store
	ledTerm        atomic.Uint64  // last term in which this server was the leader and had applied all entries of earlier leaders
	leadership     chan bool      // receives from raft whether this server is the leader, after each change
	leadershipDone chan struct{}  // closed when watchLeadership has returned
	requests       requestTracker // requests that use raft

	// verify and commit make answers linearizable. Tests replace them to inject bugs.
	verify func() error                          // confirms that this server is still the leader
	commit func(f raft.ApplyFuture) (any, error) // waits until an entry is committed and returns its result
}

const applyTimeout = 5 * time.Second

// startRaft starts raft with an empty store.
func (s *server) startRaft(
	cfg *raft.Config,
	logs raft.LogStore,
	stable raft.StableStore,
	snaps raft.SnapshotStore,
) (err error) {
	s.leadership = make(chan bool, 16)
	cfg.NotifyCh = s.leadership
	cfg.ShutdownOnRemove = false // only stop shuts down raft
	s.store = newStore()
	if s.raft, err = raft.NewRaft(cfg, s.store, logs, stable, snaps, s.transport); err != nil {
		return err
	}
	s.verify = func() error { return s.raft.VerifyLeader().Error() }
	s.commit = func(f raft.ApplyFuture) (any, error) {
		if err := f.Error(); err != nil {
			return nil, err
		}
		return f.Response(), nil
	}
	s.leadershipDone = make(chan struct{})
	go s.watchLeadership()
	return nil
}

// registerMethods registers the methods. Isolate is included only if faults is true.
func (s *server) registerMethods(faults bool) {
	Put.Handle(s.node, s.put)
	Get.Handle(s.node, s.get)
	Watch.Handle(s.node, s.watch)
	Status.Handle(s.node, s.status)
	Join.Handle(s.node, func(_ context.Context, name string) (struct{}, error) {
		return struct{}{}, s.changeMembership(func() raft.IndexFuture {
			return s.raft.AddVoter(raft.ServerID(name), raft.ServerAddress(name), 0, applyTimeout)
		})
	})
	Remove.Handle(s.node, func(_ context.Context, name string) (struct{}, error) {
		return struct{}{}, s.changeMembership(
			func() raft.IndexFuture { return s.raft.RemoveServer(raft.ServerID(name), 0, applyTimeout) },
		)
	})
	if faults {
		Isolate.Handle(s.node, func(_ context.Context, alone bool) (struct{}, error) {
			if alone {
				s.transport.DisconnectAll()
			} else {
				s.transport.ConnectAll()
			}
			return struct{}{}, nil
		})
	}
}

// watchLeadership handles each election of this server. It waits until all entries of earlier
// leaders have been applied here, and then sets ledTerm.
func (s *server) watchLeadership() {
	defer close(s.leadershipDone)
	for isLeader := range s.leadership {
		if !isLeader || !s.requests.tryBegin() {
			continue
		}
		term := s.raft.CurrentTerm()
		if s.raft.Barrier(0).Error() == nil && s.raft.CurrentTerm() == term {
			s.ledTerm.Store(term)
		}
		s.requests.end()
	}
}

// stop shuts down raft, its transport and the watchers, but not the node. It first rejects new
// requests and waits for those in progress, since raft leaves some futures without a result when it
// shuts down.
func (s *server) stop() error {
	s.requests.close()
	err := s.raft.Shutdown().Error()
	s.store.endWatchers()
	close(s.leadership)
	<-s.leadershipDone
	return err
}

// A requestTracker counts the requests in progress that wait for raft. Its zero value is ready to
// use.
type requestTracker struct {
	mu     sync.Mutex // guards closed; held during active.Add, so that no Add follows close
	closed bool
	active sync.WaitGroup
}

// tryBegin counts a request and returns true, or returns false after close. If it returns true, the
// caller must call end.
func (g *requestTracker) tryBegin() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.active.Add(1)
	}
	return !g.closed
}

// end removes a request that tryBegin has counted.
func (g *requestTracker) end() { g.active.Done() }

// close rejects further requests and waits for those in progress to complete.
func (g *requestTracker) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.active.Wait()
}

// notLeaderError returns the error of a server that is not the leader. Its detail redirects the
// client.
func (s *server) notLeaderError(cause error) error {
	addr, id := s.raft.LeaderWithID()
	to := Redirect{}
	if id != raft.ServerID(s.name) && addr != "" {
		to.Leader = string(s.transport.DecodePeer(s.transport.EncodePeer(id, addr)))
	}
	return qs.Refuse(qs.WithDetail(qs.Errorf(qs.ErrUnavailable, "%s does not lead: %w", s.name, cause),
		to))
}

// toCallError converts an error of raft. If the request certainly did not run, the result is a
// refusal.
func (s *server) toCallError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrNotLeader),
		errors.Is(err, raft.ErrLeadershipTransferInProgress),
		errors.Is(err, raft.ErrEnqueueTimeout):
		return s.notLeaderError(err)
	}
	return qs.Errorf(qs.ErrUnavailable, "%s: %w", s.name, err) // for example raft.ErrLeadershipLost: the request may have run
}

// changeMembership applies a change to raft's configuration.
func (s *server) changeMembership(f func() raft.IndexFuture) error {
	if !s.requests.tryBegin() {
		return s.notLeaderError(raft.ErrRaftShutdown)
	}
	defer s.requests.end()
	return s.toCallError(f().Error())
}

// put implements the method Put.
func (s *server) put(_ context.Context, in PutIn) (uint64, error) {
	if !s.requests.tryBegin() {
		return 0, s.notLeaderError(raft.ErrRaftShutdown)
	}
	defer s.requests.end()
	b, err := codec.Msgpack.Append(nil, command(in))
	if err != nil {
		return 0, err
	}
	done, err := s.commit(s.raft.Apply(b, applyTimeout))
	if err != nil {
		return 0, s.toCallError(err)
	}
	if err, failed := done.(error); failed {
		return 0, err
	}
	r := done.(result)
	if !r.Done {
		return 0, qs.Errorf(errDiffers, "key %q has another value", in.Key)
	}
	return r.Index, nil
}

// get implements the method Get. Two checks make a read without Stale linearizable. First, this
// server has applied all entries that earlier leaders acknowledged (see ledTerm). Second, after the
// request arrived, a majority has confirmed that this server still leads (see verify). Because a
// leader applies an entry before it acknowledges it, no acknowledged write is then missing here.
func (s *server) get(_ context.Context, in GetIn) (out GetOut, err error) {
	if !in.Stale {
		if !s.requests.tryBegin() {
			return out, s.notLeaderError(raft.ErrRaftShutdown)
		}
		defer s.requests.end()
		if s.ledTerm.Load() != s.raft.CurrentTerm() {
			return out, s.notLeaderError(raft.ErrNotLeader)
		}
		if err := s.verify(); err != nil {
			return out, s.notLeaderError(err)
		}
	}
	out.Value, out.Found, out.Index = s.store.get(in.Key)
	return out, nil
}

// watch implements the method Watch.
func (s *server) watch(ctx context.Context, in WatchIn, send func(Change) error) error {
	w, stop := s.store.watch(in.Prefix)
	defer stop()
	for {
		select {
		case c, ok := <-w.changes:
			if !ok {
				return errWatcherBehind
			}
			if err := send(c); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// status implements the method Status.
func (s *server) status(context.Context, struct{}) (StatusOut, error) {
	_, leader := s.raft.LeaderWithID()
	out := StatusOut{
		Name:    s.name,
		State:   s.raft.State().String(),
		Leader:  string(leader),
		Term:    s.raft.CurrentTerm(),
		Applied: s.raft.AppliedIndex(),
	}
	for _, v := range s.raft.GetConfiguration().Configuration().Servers {
		out.Servers = append(out.Servers, string(v.ID))
	}
	return out, nil
}
