package bench

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/self"
	"github.com/quicksilver-rpc/quicksilver/hg"
)

// An IdleResult is the CPU time and the memory for peers that do nothing.
type IdleResult struct {
	Peers     int     `json:"peers"`
	Processes int     `json:"processes"`
	Seconds   float64 `json:"seconds"`
	CPU       float64 `json:"cpu_percent"`
	Bytes     float64 `json:"bytes_per_peer"`
}

// Idle has many peers, in several processes that swarm starts, connect to this process, call it once and fall silent, and measures what that
// costs here: this process's processor time, and its heap and stacks for each peer. The system's memory for sockets is not in it.
func Idle(ctx context.Context, cfg hg.Config, listen string, swarm func(addr string, peers int) (*self.Child, error), peers, processes int, d time.Duration) (r IdleResult, err error) {
	cfg.NA.Envelopes = 32
	cfg.NA.Budget = int64(peers+1) * 32 * (4096 + 64)
	class, err := hg.Open(listen, cfg)
	if err != nil {
		return r, err
	}
	if _, err := class.Register(rpcEcho, handleEcho); err != nil {
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
	for i := range processes {
		if ctx.Err() != nil {
			return r, ErrStopped
		}
		c, err := swarm(hctx.Self().String(), (peers+i)/processes)
		if err != nil {
			return r, err
		}
		defer c.Stop()
	}
	if got := hctx.Stats().NA.Peers; got != peers {
		return r, fmt.Errorf("%d of %d peers are connected", got, peers)
	}
	r = IdleResult{Peers: peers, Processes: processes}
	begun, used := time.Now(), cpuTime()
	over := time.NewTimer(d)
	defer over.Stop()
	select {
	case <-over.C:
	case <-ctx.Done(): // what was measured until then
	}
	used, r.Seconds = cpuTime()-used, time.Since(begun).Seconds()
	r.Bytes = float64(memory()-before) / float64(peers) // now that they are silent
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
func Swarm(cfg hg.Config, own, addr string, peers int) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for range peers {
		p := &Perf{Size: 64, API: "callback"}
		if err := p.Open(cfg, own, addr); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}
