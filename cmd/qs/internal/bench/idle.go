package bench

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/self"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// An IdleResult is the CPU time and the memory for peers that do nothing, and for callers beside them.
type IdleResult struct {
	Peers     int     `json:"peers"`   // that do nothing
	Callers   int     `json:"callers"` // peers that make one call after the other
	Processes int     `json:"processes"`
	Seconds   float64 `json:"seconds"`
	CPU       float64 `json:"cpu_percent"`
	Bytes     float64 `json:"bytes_per_peer"` // callers are peers, too
	Rate      float64 `json:"calls_per_s"`
}

// A Crowd is the peers of Idle. Those that do nothing are in other processes than those that call.
type Crowd struct {
	Peers, Callers, Processes int // Processes for each of both
	// Start starts a process of so many peers, which have connected to addr when it returns. Callers begin after the line Begin.
	Start func(addr string, peers int, areCallers bool) (*self.Child, error)
}

// Begin is the line after which a process of callers begins to call.
const Begin = "begin"

// Idle has many peers connect to this process, call it once and fall silent, or go on to call it, and measures what that costs here:
// this process's processor time, and its heap and stacks for each peer. The system's memory for sockets is not in it.
func Idle(ctx context.Context, cfg hg.Config, listen string, crowd Crowd, d time.Duration) (r IdleResult, err error) {
	all := crowd.Peers + crowd.Callers
	cfg.NA.Envelopes = 32
	cfg.NA.Budget = int64(all+1) * int64(cfg.NA.Envelopes+na.ExpeditedEnvelopes) * (4096 + 64)
	class, err := hg.Open(listen, cfg)
	if err != nil {
		return r, err
	}
	var calls atomic.Int64
	count := func(h hg.Request) error {
		calls.Add(1)
		return handleEcho(h)
	}
	if _, err := class.Register(rpcEcho, count); err != nil {
		return r, err
	}
	hctx, err := class.NewContext()
	if err != nil {
		return r, err
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		for hctx.Progress(-1) == nil {
			hctx.Trigger(0)
		}
	}()
	defer func() {
		_ = class.Close()
		<-drained
	}()
	before := memory()
	var callers []*self.Child
	for _, part := range []struct {
		peers      int
		areCallers bool
	}{{crowd.Peers, false}, {crowd.Callers, true}} {
		n := min(part.peers, crowd.Processes)
		for i := range n {
			if ctx.Err() != nil {
				return r, ErrStopped
			}
			c, err := crowd.Start(hctx.Self().String(), (part.peers+i)/n, part.areCallers)
			if err != nil {
				return r, err
			}
			defer c.Stop()
			if part.areCallers {
				callers = append(callers, c)
			}
		}
		r.Processes += n
	}
	if got := hctx.Stats().NA.Peers; got != all {
		return r, fmt.Errorf("%d of %d peers are connected", got, all)
	}
	r.Peers, r.Callers = crowd.Peers, crowd.Callers
	for _, c := range callers {
		if err := c.Send(Begin); err != nil {
			return r, err
		}
	}
	called := calls.Load()
	begun, used := time.Now(), cpuTime()
	over := time.NewTimer(d)
	defer over.Stop()
	select {
	case <-over.C:
	case <-ctx.Done(): // what was measured until then
	}
	used, r.Seconds = cpuTime()-used, time.Since(begun).Seconds()
	r.Rate = float64(calls.Load()-called) / r.Seconds
	r.Bytes = float64(memory()-before) / float64(all) // now that those that do nothing are silent
	r.CPU = 100 * used.Seconds() / r.Seconds
	return r, nil
}

// memory returns the bytes of heap and stacks in use.
func memory() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// Swarm makes many peers, each a class of its own opened at own, which call addr once.
func Swarm(cfg hg.Config, own, addr string, peers int) (all []*Perf, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for range peers {
		p := &Perf{Size: 64, API: "sync"}
		if err := p.Open(cfg, own, addr); err != nil {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		all = append(all, p)
	}
	return all, nil
}

// CallOn makes one call after the other until one fails or p is stopped.
func (p *Perf) CallOn() error {
	c, err := p.newCall(Pattern(p.Size))
	if err != nil {
		return err
	}
	defer c.h.Close()
	for err == nil && !p.stopped.Load() {
		err = c.callOnce()
	}
	return err
}
