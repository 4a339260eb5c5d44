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

// loadServer is the name of the server that generates the load.
const loadServer = "kv-0"

// Load is a method that kv-0 serves if it has the flag -load. Every other server calls it with its
// own name once it is ready. The load begins when all servers have called Load. All calls return
// when the load is complete, so that no server exits during the load.
var Load = qs.Define[string, struct{}]("kv/load", qs.Idempotent())

// A loadRun is one run of the load, together with the servers that wait for it to complete.
type loadRun struct {
	allReady chan struct{} // closed when all other servers have called Load
	done     chan struct{} // closed when the load is complete

	mu      sync.Mutex      // guards the fields below
	arrived map[string]bool // servers that have called Load
	missing int             // number of servers that have not called Load
}

// newLoadRun returns a loadRun that waits for the given number of other servers.
func newLoadRun(others int) *loadRun {
	l := &loadRun{
		allReady: make(chan struct{}),
		done:     make(chan struct{}),
		arrived:  map[string]bool{},
		missing:  others,
	}
	if others <= 0 {
		close(l.allReady)
	}
	return l
}

// registerMethod registers Load.
func (l *loadRun) registerMethod(node *qs.Node) {
	Load.Handle(node, func(ctx context.Context, name string) (struct{}, error) {
		l.addServer(name)
		select {
		case <-l.done:
			return struct{}{}, nil
		case <-ctx.Done():
			return struct{}{}, context.Cause(ctx)
		}
	})
}

// addServer counts a server that has called Load. Repeated calls by the same server have no effect.
func (l *loadRun) addServer(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.missing == 0 || l.arrived[name] {
		return
	}
	l.arrived[name] = true
	if l.missing--; l.missing == 0 {
		close(l.allReady)
	}
}

// run generates the load once all servers are ready, and checks the history.
func (l *loadRun) run(
	ctx context.Context, node *qs.Node, servers func() []string, d time.Duration,
) error {
	defer close(l.done)
	select {
	case <-l.allReady:
		return runLoad(ctx, node, servers, d)
	case <-ctx.Done():
		return nil
	}
}

// awaitLoad calls Load at kv-0 and waits until it returns, kv-0 is gone, or ctx is done. It calls
// again if the connection fails, or if the group temporarily suspects that kv-0 has failed.
func awaitLoad(ctx context.Context, node *qs.Node, d *directory, name string) {
	tick := time.NewTicker(retryPause)
	defer tick.Stop()
	for arrived := false; ; {
		addr, err := d.ServerAddr(raft.ServerID(loadServer))
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

// runLoad runs 16 clients for duration d, and uses porcupine to check that their history is
// linearizable.
func runLoad(ctx context.Context, node *qs.Node, servers func() []string, d time.Duration) error {
	run, stop := context.WithTimeout(ctx, d)
	defer stop()
	h := newHistory(64)
	c := NewClient(node, servers)
	var clients sync.WaitGroup
	for i := range 16 {
		clients.Go(
			func() {
				h.runClient(run, i, c,
					rand.New(rand.NewPCG(uint64(i), uint64(h.start.UnixNano()))))
			},
		)
	}
	clients.Wait()
	h.readAll(c)
	err := h.checkLinearizable(time.Minute)
	verdict := "linearizable"
	if err != nil {
		verdict = err.Error()
	}
	log.Printf("%s; every answer was checked: %s", h.summary(), verdict)
	return err
}
