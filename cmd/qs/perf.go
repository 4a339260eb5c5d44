package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/bench"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/files"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/self"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
)

func runPerf(args []string, out io.Writer) error {
	fs := flag.NewFlagSet("perf [flags]", flag.ContinueOnError)
	var n network
	p := &bench.Perf{}
	n.flags(fs)
	transport := fs.String("transport", "tcp", "`scheme` of the target that is started; auto: tcp, with sm beside it")
	fs.StringVar(&p.API, "api", "callback", "callback: one goroutine, many handles; sync: a waiting goroutine for each call; typed: sync with package qs, at both ends")
	fs.IntVar(&p.Size, "size", 64, "`bytes` of a call's input and output; in a table over sizes the least")
	fs.Int64Var(&p.Bulk, "bulk", 16<<20, "`bytes` of a bulk transfer, 0 for none; in a table over sizes the most")
	fs.BoolVar(&p.Alloc, "alloc", false, "bulk data is pulled by the target, from memory of bulk.Alloc, which peers on this machine read by themselves; each call lends as much of it, at which its handler looks")
	fs.DurationVar(&p.Time, "time", 2*time.Second, "`time` of each measurement")
	fs.DurationVar(&p.Pause, "pause", 0, "`time` to wait between calls")
	inflight := fs.String("inflight", "1,16,64", "calls in flight, a list; in a table over sizes the last, of calls or transfers")
	target := fs.String("target", "", "`address` of a running qs serve; without it one is started")
	op := fs.String("op", "", "rate, lat (calls with input of a size), read (the target pushes) or write (it pulls): a table over sizes; mixed: calls beside bulk; idle: the cost of silent peers")
	both := fs.Bool("both", false, "-op rate and lat: the output has the size of the input, instead of none")
	peers := fs.Int("peers", 1000, "how many peers, with -op idle")
	processes := fs.Int("processes", 10, "how many processes run them, each peer in a context of its own")
	withFloor := fs.Bool("floor", false, "also measure the least that a call could cost: a bare echo over one tcp connection, and one over a unix socket through package net")
	asJSON := fs.Bool("json", false, "print JSON")
	if err := parse(fs, args, 0, 0); err != nil {
		return err
	}
	n.choose(*transport)
	switch {
	case p.API != "callback" && p.API != "sync" && p.API != "typed":
		return usageError{fmt.Sprintf("-api is %q, want callback, sync or typed", p.API)}
	case *op != "" && *op != "mixed" && *op != "idle" && !bench.IsLadder(*op):
		return usageError{fmt.Sprintf("-op is %q, want rate, lat, read, write, mixed or idle", *op)}
	case p.Size < 0 || p.Bulk < 0 || p.Time <= 0 || p.Pause < 0 || p.Bulk > bench.MaxMove:
		return usageError{"a size or time is negative, or -bulk larger than 1 GiB"}
	case bench.IsLadder(*op) && int64(p.Size) > p.Bulk:
		return usageError{fmt.Sprintf("-size %d is more than -bulk %d: the table over sizes would be empty", p.Size, p.Bulk)}
	case p.Alloc && (p.API == "typed" || *op != "" && *op != "write"):
		return usageError{"-alloc is for -op write, or no -op, and not for -api typed"}
	case *both && !bench.OfCalls(*op):
		return usageError{"-both is for -op rate and lat"}
	case *withFloor && *op != "":
		return usageError{"-floor is measured without -op"}
	case *withFloor && p.Size < 1:
		return usageError{"-floor needs a -size of at least 1"}
	case *op == "idle" && (n.busy != 0 || n.profile != "" || *target != ""):
		return usageError{"-op idle has no -busy, -cpuprofile and -target"}
	case *op == "idle" && *peers < 1:
		return usageError{fmt.Sprintf("-peers is %d, want at least 1", *peers)}
	case *op == "idle" && *processes < 1:
		return usageError{fmt.Sprintf("-processes is %d, want at least 1", *processes)}
	}
	for _, s := range strings.Split(*inflight, ",") {
		v, err := strconv.Atoi(s)
		if err != nil || v < 1 || v > 4096 {
			return usageError{fmt.Sprintf("-inflight has %q, want numbers from 1 to 4096 with commas between", s)}
		}
		p.Inflight = append(p.Inflight, v)
	}
	if *op == "idle" {
		return idle(&n, *peers, min(*peers, *processes), p.Time, *asJSON, out)
	}
	addr := *target
	if p.API == "typed" {
		n.handlers = "typed"
	}
	if addr == "" {
		c, err := self.Start(self.Ready, slices.Concat([]string{"serve", "-child"}, n.args(), []string{n.anywhere()})...)
		if err != nil {
			return err
		}
		defer c.Stop()
		addr = c.Addr
	}
	cfg, err := n.config(addr)
	if err != nil {
		return err
	}
	if err := p.Open(cfg, n.to(addr), addr); err != nil {
		return files.Explain(p.Peer(), err)
	}
	defer p.Close()
	stopProfile, err := n.startProfile()
	if err != nil {
		return err
	}
	defer stopProfile()
	bench.Burden(n.busy)
	switch *op {
	case "":
	case "mixed":
		return p.Mixed(*asJSON, out)
	default:
		if bench.OfCalls(*op) && !*both {
			if err := p.OfTake(); err != nil {
				return err
			}
		}
		return p.Ladder(*op, *asJSON, out)
	}
	r, err := p.All()
	if err != nil {
		return err
	}
	r.Peer = "quicksilver-" + p.By() + "-" + p.API
	rs := []bench.Result{r}
	if *withFloor {
		floor, err := p.Floor(n.spin)
		if err != nil {
			return err
		}
		unix, err := p.FloorUnix(n.busy)
		if err != nil {
			return err
		}
		rs = append(rs, floor, unix)
	}
	if *asJSON {
		return show.JSON(out, rs)
	}
	printPerf(p, out, rs)
	return nil
}

func printPerf(p *bench.Perf, out io.Writer, rs []bench.Result) {
	fmt.Fprintf(out, "# %s, %d cores, GOMAXPROCS %d, %d B calls, %d B bulk\n", runtime.Version(), runtime.NumCPU(),
		runtime.GOMAXPROCS(0), p.Size, p.Bulk)
	fmt.Fprintf(out, "%-26s %9s %9s", "peer", "p50 us", "p99 us")
	for _, n := range p.Inflight {
		fmt.Fprintf(out, " %10s", "rate@"+strconv.Itoa(n))
	}
	fmt.Fprintf(out, " %12s\n", "bulk MiB/s")
	for _, r := range rs {
		fmt.Fprintf(out, "%-26s %9.1f %9.1f", r.Peer, r.P50, r.P99)
		for _, n := range p.Inflight {
			fmt.Fprintf(out, " %10s", figure(r.Rate[strconv.Itoa(n)]))
		}
		fmt.Fprintf(out, " %12s\n", figure(r.Bulk))
	}
}

// figure prints a number, or a dash for what was not measured.
func figure(v float64) string {
	if v == 0 {
		return "-"
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

func idle(n *network, peers, processes int, d time.Duration, asJSON bool, out io.Writer) error {
	cfg, err := n.config(n.anywhere())
	if err != nil {
		return err
	}
	r, err := bench.Idle(cfg, n.anywhere(), func(addr string, peers int) (*self.Child, error) {
		return self.Start(swarmReady, slices.Concat([]string{"swarm"}, n.secrets.args(), []string{addr, strconv.Itoa(peers)})...)
	}, peers, processes, d)
	if err != nil {
		return err
	}
	if asJSON {
		return show.JSON(out, r)
	}
	fmt.Fprintf(out, "%d idle peers in %d processes: %.3f %% of a processor over %.1f s, %.0f bytes for each peer\n", r.Peers, r.Processes, r.CPU, r.Seconds, r.Bytes)
	return nil
}

// swarmReady is what a process of many peers says when each has had an answer.
const swarmReady = "connected"

// runSwarm is a process of many peers; it ends with its input.
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
	cfg, err := n.config(fs.Arg(0))
	if err != nil {
		return err
	}
	if err := bench.Swarm(cfg, n.to(fs.Arg(0)), fs.Arg(0), peers); err != nil {
		return err
	}
	fmt.Fprintln(out, swarmReady)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
