package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/self"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// idleResult is what peers cost that do nothing.
type idleResult struct {
	Peers   int     `json:"peers"`
	Seconds float64 `json:"seconds"`
	CPU     float64 `json:"cpu_percent"`
	Bytes   float64 `json:"bytes_per_peer"`
}

// idle has many peers connect to this process, call it once and fall silent, and measures what that costs here: this
// process's processor time, and its heap and stacks for each peer. The system's memory for sockets is not in it.
func idle(n *network, peers int, d time.Duration, asJSON bool, out io.Writer) error {
	cfg, err := n.config()
	if err != nil {
		return err
	}
	cfg.NA.Envelopes = 32
	cfg.NA.Budget = int64(peers+1) * 32 * (4096 + 64)
	class, err := hg.Open(anywhere(n.transport), cfg)
	if err != nil {
		return err
	}
	if _, err := class.Register(rpcEcho, echo); err != nil {
		return err
	}
	hctx, err := class.NewContext()
	if err != nil {
		return err
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
	swarm, err := self.Start(swarmReady, append(append([]string{"swarm"}, n.secrets.args()...), hctx.Self().String(), strconv.Itoa(peers))...)
	if err != nil {
		return err
	}
	defer swarm.Stop()
	if got := hctx.Stats().NA.Peers; got != peers {
		return fmt.Errorf("%d of %d peers are connected", got, peers)
	}
	r := idleResult{Peers: peers, Bytes: float64(memory()-before) / float64(peers)}
	begun, used := time.Now(), cpuTime()
	time.Sleep(d)
	used, r.Seconds = cpuTime()-used, time.Since(begun).Seconds()
	r.CPU = 100 * used.Seconds() / r.Seconds
	if asJSON {
		return json.NewEncoder(out).Encode(r)
	}
	fmt.Fprintf(out, "%d idle peers: %.3f %% of a processor over %.1f s, %.0f bytes for each peer\n", r.Peers, r.CPU, r.Seconds, r.Bytes)
	return nil
}

// memory returns the bytes of heap and stacks in use.
func memory() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// swarmReady is what a process of many peers says when each has had an answer.
const swarmReady = "connected"

// runSwarm is a process of many peers, each a class of its own; it ends with its input.
func runSwarm(args []string, out io.Writer) error {
	fs := flag.NewFlagSet("swarm [flags] ADDRESS PEERS", flag.ContinueOnError)
	n := network{timeout: 5 * time.Second, spin: -1}
	n.secrets.flags(fs)
	if err := parse(fs, args, 2, 2); err != nil {
		return err
	}
	peers, err := strconv.Atoi(fs.Arg(1))
	if err != nil {
		return usageError{err.Error()}
	}
	to, err := na.ParseAddr(fs.Arg(0))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for range peers {
		p := &perf{size: 64, api: "callback", peer: to}
		if err := p.open(&n, fs.Arg(0)); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	fmt.Fprintln(out, swarmReady)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
