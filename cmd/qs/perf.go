package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quicksilver-rpc/quicksilver"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/self"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// perf is one run against one target.
//
//	callback: one goroutine, N handles; each callback forwards its handle again      Forward ─► Progress, Trigger ─► …
//	sync:     N goroutines, each with a handle, forward and wait                     CallRaw ─► …
//	typed:    the same with typed calls and handlers                                  Method.Call ─► …
//	bulk:     one call in flight; its handler pushes to, or pulls from, our memory
type perf struct {
	api      string
	size     int
	inflight []int
	bulk     int64
	time     time.Duration
	pause    time.Duration

	hctx *hg.Context
	node *quicksilver.Node // of -api typed
	to   quicksilver.Peer  // likewise
	peer na.Addr
	call hg.ID // what is called: rpcEcho or rpcTake
	move hg.ID
}

// A result has the fields that users' own measurements of other systems print, too.
type result struct {
	Peer string             `json:"peer"`
	P50  float64            `json:"lat_p50_us"`
	P99  float64            `json:"lat_p99_us"`
	Rate map[string]float64 `json:"rate_per_s"`
	Bulk float64            `json:"bulk_MiB_s"`
}

func runPerf(args []string, out io.Writer) error {
	fs := flag.NewFlagSet("perf [flags]", flag.ContinueOnError)
	var n network
	p := &perf{}
	n.flags(fs)
	fs.StringVar(&n.transport, "transport", "tcp", "`scheme` of the target that is started")
	fs.StringVar(&p.api, "api", "callback", "callback: one goroutine, many handles; sync: a goroutine for each call, which waits; typed: the same with the root package, at both ends")
	fs.IntVar(&p.size, "size", 64, "`bytes` of a call's input and output")
	fs.Int64Var(&p.bulk, "bulk", 16<<20, "`bytes` of a bulk transfer, 0 for none; with -op the largest size of the table")
	fs.DurationVar(&p.time, "time", 2*time.Second, "`time` of each measurement")
	fs.DurationVar(&p.pause, "pause", 0, "`time` to wait between calls")
	inflight := fs.String("inflight", "1,16,64", "calls in flight, a list")
	target := fs.String("target", "", "`address` of a running qs serve; without it one is started")
	op := fs.String("op", "", "rate, lat (calls with input of a size), read (the target pushes) or write (it pulls): a table over sizes; mixed: calls beside bulk; idle: what silent peers cost")
	both := fs.Bool("both", false, "-op rate and lat: the output has the size of the input; without it there is none")
	peers := fs.Int("peers", 1000, "how many peers, with -op idle")
	withFloor := fs.Bool("floor", false, "also measure the least that a call could cost, a bare echo over one tcp connection, and what one over a unix socket costs through package net")
	asJSON := fs.Bool("json", false, "print JSON")
	if err := parse(fs, args, 0, 0); err != nil {
		return err
	}
	switch {
	case p.api != "callback" && p.api != "sync" && p.api != "typed":
		return usageError{fmt.Sprintf("-api is %q, want callback, sync or typed", p.api)}
	case *op != "" && *op != "mixed" && *op != "idle" && ladders[*op] == nil:
		return usageError{fmt.Sprintf("-op is %q, want rate, lat, read, write, mixed or idle", *op)}
	case p.size < 0 || p.bulk < 0 || p.time <= 0 || p.pause < 0 || p.bulk > maxMove:
		return usageError{"a size or time is negative, or -bulk larger than 1 GiB"}
	case *both && !p.calls(*op):
		return usageError{"-both is for -op rate and lat"}
	case *withFloor && *op != "":
		return usageError{"-floor is measured without -op"}
	case *withFloor && p.size < 1:
		return usageError{"-floor needs a -size of at least 1"}
	case *op == "idle" && (n.busy != 0 || n.profile != "" || *target != ""):
		return usageError{"-op idle has no -busy, -cpuprofile and -target"}
	case *op == "idle" && *peers < 1:
		return usageError{fmt.Sprintf("-peers is %d, want at least 1", *peers)}
	}
	for _, s := range strings.Split(*inflight, ",") {
		v, err := strconv.Atoi(s)
		if err != nil || v < 1 || v > 4096 {
			return usageError{fmt.Sprintf("-inflight has %q, want numbers from 1 to 4096 with commas between", s)}
		}
		p.inflight = append(p.inflight, v)
	}
	if *op == "idle" {
		return idle(&n, *peers, p.time, *asJSON, out)
	}
	addr := *target
	if p.api == "typed" {
		n.handlers = "typed"
	}
	if addr == "" {
		c, err := self.Start(ready, slices.Concat([]string{"serve", "-child"}, n.args(), []string{anywhere(n.transport)})...)
		if err != nil {
			return err
		}
		defer c.Stop()
		addr = c.Addr
	}
	if err := p.open(&n, addr); err != nil {
		return err
	}
	defer p.close()
	stopProfile, err := n.startProfile()
	if err != nil {
		return err
	}
	defer stopProfile()
	n.burden()
	switch *op {
	case "":
	case "mixed":
		return p.mixed(*asJSON, out)
	default:
		if p.calls(*op) && !*both {
			if p.call, err = p.hctx.Class().Register(rpcTake, nil); err != nil {
				return err
			}
		}
		return p.ladder(*op, *asJSON, out)
	}
	r, err := p.all()
	if err != nil {
		return err
	}
	r.Peer = "quicksilver-" + p.peer.Scheme() + "-" + p.api
	rs := []result{r}
	if *withFloor {
		floor, err := p.floor(n.spin)
		if err != nil {
			return err
		}
		unix, err := p.floorUnix(n.busy)
		if err != nil {
			return err
		}
		rs = append(rs, floor, unix)
	}
	if *asJSON {
		return json.NewEncoder(out).Encode(rs)
	}
	p.print(out, rs)
	return nil
}

func (p *perf) print(out io.Writer, rs []result) {
	fmt.Fprintf(out, "# %s, %d cores, GOMAXPROCS %d, %d B calls, %d B bulk\n", runtime.Version(), runtime.NumCPU(),
		runtime.GOMAXPROCS(0), p.size, p.bulk)
	fmt.Fprintf(out, "%-26s %9s %9s", "peer", "p50 us", "p99 us")
	for _, n := range p.inflight {
		fmt.Fprintf(out, " %10s", "rate@"+strconv.Itoa(n))
	}
	fmt.Fprintf(out, " %12s\n", "bulk MiB/s")
	for _, r := range rs {
		fmt.Fprintf(out, "%-26s %9.1f %9.1f", r.Peer, r.P50, r.P99)
		for _, n := range p.inflight {
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

// open makes the origin and calls the target once, to see that it is one and that bytes come back as they went.
func (p *perf) open(n *network, addr string) error {
	scheme, _, _ := strings.Cut(addr, ":")
	var class *hg.Class
	cfg, err := n.config()
	if err != nil {
		return err
	}
	if p.api == "typed" {
		if p.node, err = quicksilver.Open(scheme+"://", quicksilver.Config{HG: cfg}); err == nil {
			class, p.hctx = p.node.HG().Class(), p.node.HG()
			p.to, err = p.node.Peer(context.Background(), addr)
		}
	} else if class, err = hg.Open(scheme+"://", cfg); err == nil {
		p.hctx, err = class.NewContext()
	}
	if err != nil {
		return err
	}
	if p.call, err = class.Register(rpcEcho, nil); err != nil {
		return err
	}
	if p.move, err = class.Register(rpcMove, nil); err != nil {
		return err
	}
	if p.peer, err = na.ParseAddr(addr); err != nil {
		return err
	}
	return p.checkEcho(p.size)
}

func (p *perf) close() { _ = p.hctx.Class().Close() }

// all makes every measurement.
func (p *perf) all() (r result, err error) {
	lat, err := p.latencies(pattern(p.size))
	if err != nil {
		return r, err
	}
	r.P50, r.P99 = percentile(lat, 50), percentile(lat, 99)
	r.Rate = map[string]float64{}
	for _, n := range p.inflight {
		if r.Rate[strconv.Itoa(n)], err = p.rate(n, pattern(p.size)); err != nil {
			return r, err
		}
	}
	if p.bulk > 0 {
		r.Bulk, err = p.bulkRate(push, p.bulk, 1)
	}
	return r, err
}

// percentile returns the q-th percentile of sorted times, in microseconds.
func percentile(sorted []time.Duration, q int) float64 {
	return float64(sorted[len(sorted)*q/100]) / 1e3
}
