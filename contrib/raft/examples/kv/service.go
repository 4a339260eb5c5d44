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

// The methods of the store. A server that does not lead refuses those that need the leader, with a Redirect.
var (
	Put    = qs.Define[PutIn, uint64]("kv/put") // the index of its entry in the log
	Get    = qs.Define[GetIn, GetOut]("kv/get", qs.Idempotent())
	Watch  = qs.DefineStream[WatchIn, Change]("kv/watch") // of the server that is asked; changes from now on
	Status = qs.Define[struct{}, StatusOut]("kv/status", qs.Idempotent())
	Join   = qs.Define[string, struct{}]("kv/join", qs.Idempotent())   // a server that the group has, to those that vote
	Remove = qs.Define[string, struct{}]("kv/remove", qs.Idempotent()) // a server, for good: its process is ended
	// Isolate is for experiments: a server with the flag -faults does not talk to the others any more, or does again. Clients reach it all
	// the same.
	Isolate = qs.Define[bool, struct{}]("kv/isolate")
)

// A PutIn says what a key shall have.
type PutIn struct {
	Key, Value string
	Delete     bool
	If         *string // only if it has this; a key that is not there has ""
}

// A GetIn asks for a key. With Stale any server answers at once, with what it has; else the leader does, with a value that was the last one at
// some moment between question and answer.
type GetIn struct {
	Key   string
	Stale bool
}

// A GetOut is a value.
type GetOut struct {
	Value string
	Found bool
	Index uint64 // of the last entry that the server had applied
}

// A WatchIn chooses keys.
type WatchIn struct{ Prefix string }

// A StatusOut is a server, as it sees itself.
type StatusOut struct {
	Name, State, Leader string
	Term, Applied       uint64
	Servers             []string
}

// A Redirect is the detail of a refusal: the address of the leader, or "" if there is none that the server knows.
type Redirect struct{ Leader string }

// errDiffers is the answer to a PutIn whose If does not hold.
const errDiffers = qs.Code(200)

// A server is one copy of the store.
type server struct {
	name  string
	node  *qs.Node
	t     *raftqs.Transport
	raft  *raft.Raft
	store *store
	led   atomic.Uint64 // the term in which everything of earlier leaders is applied here, while this one leads
	leads chan bool     // raft says that this server leads, or does not any more
	done  chan struct{} // lead has returned
	gate  gate          // everything that asks raft passes it

	// What makes answers right: a test plants bugs here.
	verify func() error                          // that this server leads now
	commit func(f raft.ApplyFuture) (any, error) // waits until an entry is committed, and returns what it has done
}

const applyTimeout = 5 * time.Second

// serve starts raft, and registers the methods.
func (s *server) serve(cfg *raft.Config, logs raft.LogStore, stable raft.StableStore, snaps raft.SnapshotStore) (err error) {
	s.leads = make(chan bool, 16)
	cfg.NotifyCh = s.leads
	cfg.ShutdownOnRemove = false // stop shuts raft down, and nothing else does
	s.store = newStore()
	if s.raft, err = raft.NewRaft(cfg, s.store, logs, stable, snaps, s.t); err != nil {
		return err
	}
	s.verify = func() error { return s.raft.VerifyLeader().Error() }
	s.commit = func(f raft.ApplyFuture) (any, error) {
		if err := f.Error(); err != nil {
			return nil, err
		}
		return f.Response(), nil
	}
	s.done = make(chan struct{})
	go s.lead()
	return nil
}

// handle registers the methods.
func (s *server) handle(faults bool) {
	Put.Handle(s.node, s.put)
	Get.Handle(s.node, s.get)
	Watch.Handle(s.node, s.watch)
	Status.Handle(s.node, s.status)
	Join.Handle(s.node, func(_ context.Context, name string) (struct{}, error) {
		return struct{}{}, s.change(func() raft.IndexFuture {
			return s.raft.AddVoter(raft.ServerID(name), raft.ServerAddress(name), 0, applyTimeout)
		})
	})
	Remove.Handle(s.node, func(_ context.Context, name string) (struct{}, error) {
		return struct{}{}, s.change(func() raft.IndexFuture { return s.raft.RemoveServer(raft.ServerID(name), 0, applyTimeout) })
	})
	if faults {
		Isolate.Handle(s.node, func(_ context.Context, alone bool) (struct{}, error) {
			if alone {
				s.t.DisconnectAll()
			} else {
				s.t.ConnectAll()
			}
			return struct{}{}, nil
		})
	}
}

// lead waits, each time that this server begins to lead, until everything that earlier leaders have committed is applied here.
func (s *server) lead() {
	defer close(s.done)
	for yes := range s.leads {
		if !yes || !s.gate.enter() {
			continue
		}
		term := s.raft.CurrentTerm()
		if s.raft.Barrier(0).Error() == nil && s.raft.CurrentTerm() == term {
			s.led.Store(term)
		}
		s.gate.leave()
	}
}

// stop ends raft, its transport and the watchers. The node goes on. Requests that have begun are answered first, and later ones are refused: raft
// that has been shut down leaves some of its futures without an answer.
func (s *server) stop() error {
	s.gate.close()
	err := s.raft.Shutdown().Error()
	s.store.endAll()
	close(s.leads)
	<-s.done
	return err
}

// A gate counts the requests that raft has to answer. The zero value is open.
type gate struct {
	mu     sync.Mutex // guards closed, and that nothing enters beside it
	closed bool
	inside sync.WaitGroup
}

// enter reports whether a request may begin; then leave ends it.
func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.inside.Add(1)
	}
	return !g.closed
}

func (g *gate) leave() { g.inside.Done() }

// close lets no request begin any more, and waits until those that have begun have ended.
func (g *gate) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.inside.Wait()
}

// refuse returns the refusal of a server that does not lead.
func (s *server) refuse(why error) error {
	addr, id := s.raft.LeaderWithID()
	to := Redirect{}
	if id != raft.ServerID(s.name) && addr != "" {
		to.Leader = string(s.t.DecodePeer(s.t.EncodePeer(id, addr)))
	}
	return qs.Refuse(qs.WithDetail(qs.Errorf(qs.ErrUnavailable, "%s does not lead: %w", s.name, why), to))
}

// explain says of an error of raft whether the request has certainly not run.
func (s *server) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress), errors.Is(err, raft.ErrEnqueueTimeout):
		return s.refuse(err)
	}
	return qs.Errorf(qs.ErrUnavailable, "%s: %w", s.name, err) // raft.ErrLeadershipLost: it may have run
}

// change changes which servers there are.
func (s *server) change(f func() raft.IndexFuture) error {
	if !s.gate.enter() {
		return s.refuse(raft.ErrRaftShutdown)
	}
	defer s.gate.leave()
	return s.explain(f().Error())
}

func (s *server) put(_ context.Context, in PutIn) (uint64, error) {
	if !s.gate.enter() {
		return 0, s.refuse(raft.ErrRaftShutdown)
	}
	defer s.gate.leave()
	b, err := codec.Msgpack.Append(nil, command(in))
	if err != nil {
		return 0, err
	}
	done, err := s.commit(s.raft.Apply(b, applyTimeout))
	if err != nil {
		return 0, s.explain(err)
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

// get reads from the store. For a read that is linearizable this server must have led before, with everything applied that earlier leaders had
// acknowledged, and most servers must say, after the question came, that it leads still: then nobody has acknowledged a write that is not
// applied here, since this server applies before it acknowledges.
func (s *server) get(_ context.Context, in GetIn) (out GetOut, err error) {
	if !in.Stale {
		if !s.gate.enter() {
			return out, s.refuse(raft.ErrRaftShutdown)
		}
		defer s.gate.leave()
		if s.led.Load() != s.raft.CurrentTerm() {
			return out, s.refuse(raft.ErrNotLeader)
		}
		if err := s.verify(); err != nil {
			return out, s.refuse(err)
		}
	}
	out.Value, out.Found, out.Index = s.store.get(in.Key)
	return out, nil
}

func (s *server) watch(ctx context.Context, in WatchIn, send func(Change) error) error {
	w, stop := s.store.watch(in.Prefix)
	defer stop()
	for {
		select {
		case c, ok := <-w.changes:
			if !ok {
				return errBehind
			}
			if err := send(c); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (s *server) status(context.Context, struct{}) (StatusOut, error) {
	_, leader := s.raft.LeaderWithID()
	out := StatusOut{Name: s.name, State: s.raft.State().String(), Leader: string(leader), Term: s.raft.CurrentTerm(), Applied: s.raft.AppliedIndex()}
	for _, v := range s.raft.GetConfiguration().Configuration().Servers {
		out.Servers = append(out.Servers, string(v.ID))
	}
	return out, nil
}
