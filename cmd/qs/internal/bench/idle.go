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

// An IdleResult holds the CPU time and memory that a process uses for idle peers while other peers make calls.
type IdleResult struct {
	Peers     int     `json:"peers"`   // number of idle peers
	Callers   int     `json:"callers"` // number of peers that make calls, one after another
	Processes int     `json:"processes"`
	Seconds   float64 `json:"seconds"`
	CPU       float64 `json:"cpu_percent"`
	Bytes     float64 `json:"bytes_per_peer"` // memory per peer, including the callers
	Rate      float64 `json:"calls_per_s"`
}

// A Crowd describes the peers that Idle uses. Idle peers and callers run in separate processes.
type Crowd struct {
	Peers, Callers, Processes int // Processes is the number of processes for idle peers, and also the number for callers
	// Start starts a process with the given number of peers, and returns when all of them have connected to addr. If
	// areCallers is true, the peers must start to make calls when the process receives the line Begin.
	Start func(addr string, peers int, areCallers bool) (*self.Child, error)
}

// Begin is the line that makes the callers of a process start to make calls.
const Begin = "begin"

// Idle measures the cost of idle peers. Many peers connect to this process and call it once. Some of them then make
// calls, and the others remain idle. The result contains the processor time of this process, and its heap and stack
// memory for each peer. The kernel's memory for sockets is not included.
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
	case <-ctx.Done(): // return the measurements so far
	}
	used, r.Seconds = cpuTime()-used, time.Since(begun).Seconds()
	r.Rate = float64(calls.Load()-called) / r.Seconds
	r.Bytes = float64(memory()-before) / float64(all) // the idle peers have made their only call
	r.CPU = 100 * used.Seconds() / r.Seconds
	return r, nil
}

// memory returns the size of the heap and stacks in use, in bytes.
func memory() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// Swarm creates peers, each of which opens a class at the address own and calls addr once.
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

// CallOn makes calls, one after another, until a call fails or Stop is called.
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
