package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/rendezvous"
)

// A gather holds the state of this process's work. All of its methods and callbacks run on the goroutine that calls
// Trigger.
type gather struct {
	ctx   context.Context
	hctx  *hg.Context
	fetch hg.ID // fetches a peer's part
	tell  hg.ID // reports the lost process to a peer
	rank  int
	stage stage
	parts []string
	peers []peer
	lost  int // rank of a process that any process has lost; -1: none
	why   error
}

// A stage is how far a process has progressed. A process leaves when all others are parting, since none of them needs
// its answer then.
type stage int

const (
	fetching stage = iota
	waiting        // has all parts
	parting        // knows that all others have all parts
)

// A peer is another process.
type peer struct {
	fetch, tell *hg.Handle // nil for this process
	stage       stage
}

// An answer is a process's response when its part is fetched.
type answer struct {
	Part  string
	Stage stage
}

func (g *gather) register(class *hg.Class) (err error) {
	if g.fetch, err = class.Register("allgather/fetch", func(h hg.Request) error {
		return h.Respond(answer{partOf(g.rank), g.stage}, nil)
	}); err != nil {
		return err
	}
	if g.tell, err = class.Register("allgather/lost", func(h hg.Request) error {
		var rank int
		if err := h.Input(&rank); err != nil {
			return err
		}
		g.lose(rank, errors.New("another process says so"))
		return h.Respond(nil, nil)
	}); err != nil {
		return err
	}
	g.hctx, err = class.NewContext()
	return err
}

func partOf(rank int) string { return fmt.Sprint("part", rank) }

// connect creates handles for all other processes.
func (g *gather) connect(world *rendezvous.World) error {
	g.parts, g.peers = make([]string, len(world.Members)), make([]peer, len(world.Members))
	for rank, member := range world.Members {
		if rank == g.rank {
			g.parts[rank] = partOf(rank)
			continue
		}
		addr, err := g.hctx.LookupWait(g.ctx, member.Addr)
		if err != nil {
			return err
		}
		if g.peers[rank].fetch, err = g.hctx.Create(addr, g.fetch); err != nil {
			return err
		}
		if g.peers[rank].tell, err = g.hctx.Create(addr, g.tell); err != nil {
			return err
		}
	}
	return nil
}

// close closes the handles.
func (g *gather) close() {
	for _, p := range g.peers {
		if p.fetch != nil {
			p.fetch.Close()
			p.tell.Close()
		}
	}
}

// work fetches parts until this process has all of them, and returns when no other process needs this one anymore.
func (g *gather) work(atLeast time.Duration) error {
	end := time.Now().Add(atLeast)
	for g.stage != parting || !g.all(parting) {
		if err := g.round(); err != nil {
			return err
		}
		switch {
		case g.stage == fetching && !time.Now().Before(end):
			g.stage = waiting
		case g.stage == waiting && g.all(waiting):
			g.stage = parting
		}
	}
	return nil
}

// round fetches the parts of all others that may still be running, and then pauses briefly. Its error names the lost
// process.
func (g *gather) round() error {
	calls := 0
	for rank := range g.peers {
		p := &g.peers[rank]
		if p.fetch == nil || p.stage == parting {
			continue
		}
		err := p.fetch.Forward(nil, func(h *hg.Handle, err error) {
			calls--
			g.fetched(rank, h, err)
		})
		if err != nil {
			return err
		}
		calls++
	}
	pause := time.Now().Add(10 * time.Millisecond)
	if err := g.until(func() bool { return calls == 0 && (g.lost >= 0 || !time.Now().Before(pause)) }); err != nil {
		return err
	}
	if g.lost < 0 {
		return nil
	}
	if err := g.tellAll(); err != nil {
		return err
	}
	return fmt.Errorf("rank %d is lost: %w", g.lost, g.why)
}

func (g *gather) fetched(rank int, h *hg.Handle, err error) {
	p := &g.peers[rank]
	var a answer
	if err == nil {
		err = h.Output(&a)
	}
	switch {
	case err == nil:
		g.parts[rank], p.stage = a.Part, a.Stage
	case g.stage == parting:
		p.stage = parting // it has left, so it completed before this process
	default:
		g.lose(rank, err)
	}
}

func (g *gather) lose(rank int, why error) {
	if g.lost < 0 {
		g.lost, g.why = rank, why
	}
}

// tellAll reports the lost process to the others. This process exits afterward, and the others must not mistake it for
// the lost one.
func (g *gather) tellAll() error {
	calls := 0
	for rank := range g.peers {
		p := &g.peers[rank]
		if p.tell == nil || rank == g.lost {
			continue
		}
		if p.tell.Forward(g.lost, func(*hg.Handle, error) { calls-- }) == nil {
			calls++
		}
	}
	return g.until(func() bool { return calls == 0 })
}

// all reports whether all others have reached at least the given stage.
func (g *gather) all(at stage) bool {
	for _, p := range g.peers {
		if p.fetch != nil && p.stage < at {
			return false
		}
	}
	return true
}

// until moves bytes and runs callbacks and handlers until done returns true.
func (g *gather) until(done func() bool) error {
	for !done() {
		if err := g.ctx.Err(); err != nil {
			return err
		}
		if err := g.hctx.Progress(10 * time.Millisecond); err != nil && !errors.Is(err, hg.ErrTimeout) {
			return err
		}
		g.hctx.Trigger(0)
	}
	return nil
}
