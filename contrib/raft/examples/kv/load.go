package main

import (
	"context"
	"errors"
	"log"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// first is the name of the server that makes the load.
const first = "kv-0"

// Load is a method of kv-0 with the flag -load: each other server calls it with its name when it is ready, and ends when it is answered, which is
// when the load is over. So the load begins when all servers are ready, and none ends before.
var Load = qs.Define[string, struct{}]("kv/load", qs.Idempotent())

// A loading is the load, with the servers that wait for its end.
type loading struct {
	all  chan struct{} // closed when all others have called
	over chan struct{} // closed when the load is over

	mu      sync.Mutex      // guards the fields below
	waits   map[string]bool // servers that have called
	missing int
}

// newLoading returns a load that waits for so many other servers.
func newLoading(others int) *loading {
	l := &loading{all: make(chan struct{}), over: make(chan struct{}), waits: map[string]bool{}, missing: others}
	if others <= 0 {
		close(l.all)
	}
	return l
}

// handle registers Load.
func (l *loading) handle(node *qs.Node) {
	Load.Handle(node, func(ctx context.Context, name string) (struct{}, error) {
		l.arrive(name)
		select {
		case <-l.over:
			return struct{}{}, nil
		case <-ctx.Done():
			return struct{}{}, context.Cause(ctx)
		}
	})
}

// arrive counts a server once.
func (l *loading) arrive(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.missing == 0 || l.waits[name] {
		return
	}
	l.waits[name] = true
	if l.missing--; l.missing == 0 {
		close(l.all)
	}
}

// run makes the load when all servers are ready.
func (l *loading) run(ctx context.Context, node *qs.Node, servers func() []string, d time.Duration) error {
	defer close(l.over)
	select {
	case <-l.all:
		return load(ctx, node, servers, d)
	case <-ctx.Done():
		return nil
	}
}

// awaitLoad returns when kv-0 says that the load is over, or its process is gone, or ctx ends. It calls again when the connection has failed, or the
// group believes for a moment that kv-0 has.
func awaitLoad(ctx context.Context, node *qs.Node, d *directory, name string) {
	tick := time.NewTicker(retryPause)
	defer tick.Stop()
	for arrived := false; ; {
		addr, err := d.ServerAddr(raft.ServerID(first))
		var peer qs.Peer
		if err == nil {
			peer, err = node.Peer(ctx, string(addr))
		}
		if err == nil {
			_, err = Load.Call(ctx, peer, name)
			if err == nil || arrived && errors.Is(err, qs.ErrUnreachable) {
				return
			}
			arrived = arrived || qs.FateOf(err) != qs.NotRun
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// load has 16 clients write and read for some time, and porcupine check what they were answered.
func load(ctx context.Context, node *qs.Node, servers func() []string, d time.Duration) error {
	run, stop := context.WithTimeout(ctx, d)
	defer stop()
	h := newHistory(64)
	c := NewClient(node, servers)
	var clients sync.WaitGroup
	for i := range 16 {
		clients.Go(func() { h.client(run, i, c, rand.New(rand.NewPCG(uint64(i), uint64(h.begin.UnixNano())))) })
	}
	clients.Wait()
	h.readAll(c)
	err := h.check(time.Minute)
	verdict := "linearizable"
	if err != nil {
		verdict = err.Error()
	}
	log.Printf("%s; every answer was checked: %s", h.ledger(), verdict)
	return err
}
