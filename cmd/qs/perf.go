package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/bench"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/files"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/self"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
	"github.com/quicksilver-rpc/quicksilver/na"
)

func (a *app) newPerf() *cobra.Command {
	m := &measurement{app: a}
	p := &m.perf
	c := &cobra.Command{
		Use: "perf", Short: "Measure rates, latencies and bulk throughput of the library",
		Long: `Measures the library between two processes: the latency of calls, their rate with --inflight calls in flight, and the throughput of bulk transfers. It starts the other process, unless --target names a running qs serve.

--op makes a table over sizes, from --size to --bulk: rate and lat of calls whose input has a size, read of transfers that the target pushes, write of those that it pulls. mixed measures calls beside bulk transfers; idle, what silent peers cost, with --callers beside others; cores, all of it with GOMAXPROCS 1, 2, 4 and so on to the processors of the machine.`,
		Example: `  qs perf
  qs perf --transport sm --json
  qs perf --op read --inflight 4 --bulk 67108864
  qs perf --op cores --api typed --bulk 0
  qs perf --target tcp://10.0.0.7:9000`,
		Args: wantArgs(0, 0), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error { return m.run() },
	}
	fs := c.Flags()
	m.network.measureFlags(fs)
	m.network.handlerFlag(c)
	fs.StringVar(&m.transport, "transport", "tcp", "`scheme` of the target that is started; auto: tcp, with sm beside it")
	fs.StringVar(&p.API, "api", "callback", "`callback`: one goroutine, many handles; sync: a waiting goroutine for each call; typed: sync with package qs, at both ends")
	fs.IntVarP(&p.Size, "size", "s", 64, "`bytes` of a call's input and output; in a table over sizes the least")
	fs.Int64Var(&p.Bulk, "bulk", 16<<20, "`bytes` of a bulk transfer, 0 for none; in a table over sizes the most")
	fs.BoolVar(&p.Alloc, "alloc", false, "bulk data is pulled by the target, from memory of bulk.Alloc, which peers on this machine read by themselves; each call lends as much of it, at which its handler looks")
	fs.DurationVarP(&p.Time, "time", "d", 2*time.Second, "`time` of each measurement")
	fs.DurationVar(&p.Pause, "pause", 0, "`time` to wait between calls")
	fs.StringVarP(&m.inflight, "inflight", "n", "1,16,64", "calls in flight, a `list`; in a table over sizes the last, of calls or transfers")
	fs.StringVar(&m.target, "target", "", "`address` of a running qs serve; without it one is started")
	fs.StringVar(&m.op, "op", "", "`what` to measure: rate, lat, read or write for a table over sizes, mixed, idle or cores")
	fs.BoolVar(&m.bothWays, "both", false, "--op rate and lat: the output has the size of the input, instead of none")
	fs.BoolVar(&m.isOutput, "output-only", false, "--op rate and lat: the output has the size, and the input is 8 bytes")
	fs.IntVar(&m.peers, "peers", 1000, "how many `peers`, with --op idle")
	fs.IntVar(&m.callers, "callers", 0, "with --op idle: how many more `peers` make one call after the other meanwhile")
	fs.IntVar(&m.processes, "processes", 10, "how many `processes` run them, and as many the callers, each peer in a context of its own")
	fs.BoolVar(&m.isFloor, "floor", false, "also measure the least that a call could cost: a bare echo over one tcp connection, and one over a unix socket through package net")
	registerChoices(c, "transport", append(na.Schemes(), "auto")...)
	registerChoices(c, "api", "callback", "sync", "typed")
	registerChoices(c, "op", "rate", "lat", "read", "write", "mixed", "idle", "cores")
	return c
}

// A measurement holds the flags of qs perf.
type measurement struct {
	app                 *app
	network             network
	perf                bench.Perf
	transport, inflight string
	target, op          string
	bothWays, isOutput  bool // used only by table operations
	isFloor             bool
	peers, callers      int
	processes           int
}

// run makes the measurements. It starts a target if none is specified.
func (m *measurement) run() error {
	n, p := &m.network, &m.perf
	if err := n.setTransport(m.transport); err != nil {
		return err
	}
	switch {
	case p.API != "callback" && p.API != "sync" && p.API != "typed":
		return usageError{fmt.Sprintf("--api is %q, want callback, sync or typed", p.API)}
	case m.op != "" && m.op != "mixed" && m.op != "idle" && m.op != "cores" && !bench.IsLadder(m.op):
		return usageError{fmt.Sprintf("--op is %q, want rate, lat, read, write, mixed, idle or cores", m.op)}
	case p.Size < 0:
		return usageError{fmt.Sprintf("--size is %d, want 0 or more", p.Size)}
	case p.Bulk < 0 || p.Bulk > bench.MaxMove:
		return usageError{fmt.Sprintf("--bulk is %d, want 0 to %d", p.Bulk, bench.MaxMove)}
	case p.Time <= 0:
		return usageError{fmt.Sprintf("--time is %v, want more than 0s", p.Time)}
	case p.Pause < 0:
		return usageError{fmt.Sprintf("--pause is %v, want 0s or more", p.Pause)}
	case bench.IsLadder(m.op) && int64(p.Size) > p.Bulk:
		return usageError{fmt.Sprintf("--size %d is more than --bulk %d: the table over sizes would be empty", p.Size, p.Bulk)}
	case p.Alloc && (p.API == "typed" || m.op != "" && m.op != "write"):
		return usageError{"--alloc is for --op write or no --op, and cannot be combined with --api typed"}
	case m.bothWays && !bench.OfCalls(m.op):
		return usageError{"--both is for --op rate and lat"}
	case m.isOutput && (!bench.OfCalls(m.op) || m.bothWays || p.API == "typed"):
		return usageError{"--output-only is for --op rate and lat, and cannot be combined with --both or --api typed"}
	case m.isFloor && m.op != "":
		return usageError{"--floor is measured without --op"}
	case m.isFloor && p.Size < 1:
		return usageError{"--floor needs a --size of at least 1"}
	case m.op == "idle" && (n.busy != 0 || n.profile != "" || m.target != ""):
		return usageError{"--op idle cannot be combined with --busy, --cpuprofile or --target"}
	case m.op == "cores" && (n.profile != "" || m.target != ""):
		return usageError{"--op cores cannot be combined with --cpuprofile or --target"}
	case m.callers < 0:
		return usageError{fmt.Sprintf("--callers is %d, want 0 or more", m.callers)}
	case m.callers > 0 && m.op != "idle":
		return usageError{"--callers is for --op idle"}
	case m.op == "idle" && (m.peers < 0 || m.peers+m.callers < 1):
		return usageError{fmt.Sprintf("--peers is %d, want at least 1, or 0 with --callers", m.peers)}
	case m.op == "idle" && m.processes < 1:
		return usageError{fmt.Sprintf("--processes is %d, want at least 1", m.processes)}
	}
	for _, s := range strings.Split(m.inflight, ",") {
		v, err := strconv.Atoi(s)
		if err != nil || v < 1 || v > 4096 {
			return usageError{fmt.Sprintf("--inflight has %q, want numbers from 1 to 4096 with commas between", s)}
		}
		p.Inflight = append(p.Inflight, v)
	}
	switch m.op {
	case "idle":
		return m.measureIdle()
	case "cores":
		return m.measureCores()
	}
	addr := m.target
	if addr != "" {
		var err error
		if addr, err = parseAddr(addr); err != nil {
			return err
		}
	}
	if p.API == "typed" {
		n.handlers = "typed"
	}
	if addr == "" {
		c, err := self.Start("", slices.Concat([]string{"serve", "--child"}, n.childArgs(), []string{n.anyListenAddr()})...)
		if err != nil {
			return err
		}
		defer c.Stop()
		addr = c.Addr
	}
	cfg, err := n.newConfig(addr)
	if err != nil {
		return err
	}
	if err := p.Open(cfg, n.clientAddr(addr), addr); err != nil && p.Peer().IsZero() {
		return explainLookup(addr, err)
	} else if err != nil {
		return withoutFate(files.Explain(p.Peer(), err))
	}
	defer p.Close()
	if err := m.measureOp(); err != nil {
		return failedError{err}
	}
	return nil
}

// measureOp runs the operation's measurements against a running target. After a signal, it prints the measurements that
// are complete.
func (m *measurement) measureOp() error {
	n, p := &m.network, &m.perf
	stopProfile, err := n.startProfile()
	if err != nil {
		return err
	}
	defer stopProfile()
	bench.Burden(n.busy)
	ctx, stop := m.app.untilSignal()
	defer stop()
	defer context.AfterFunc(ctx, p.Stop)()
	shown := m.app.newStatus()
	defer shown.clear()
	p.Step = func(done, all int, what string) {
		shown.update("%d of %d: %s, %v each", done+1, all, what, p.Time)
	}
	switch m.op {
	case "":
		err = m.measureAll(shown)
	case "mixed":
		err = m.measureMixed(shown)
	default:
		err = m.measureTable(shown)
	}
	if errors.Is(err, bench.ErrStopped) {
		return errInterrupted
	}
	return err
}

// measureAll measures the latency of calls, the rate of calls and the throughput of bulk transfers, and prints the
// result.
func (m *measurement) measureAll(shown *statusLine) error {
	p := &m.perf
	r, err := p.All()
	r.Peer = "quicksilver-" + p.By() + "-" + p.API
	rs := []bench.Result{r}
	for _, floor := range []func() (bench.Result, error){
		func() (bench.Result, error) { return p.Floor(m.network.spin) },
		func() (bench.Result, error) { return p.FloorUnix(m.network.busy) },
	} {
		if m.isFloor && err == nil {
			shown.update("the floor, %v", p.Time)
			if r, err = floor(); err == nil {
				rs = append(rs, r)
			}
		}
	}
	if err != nil && !errors.Is(err, bench.ErrStopped) {
		return err
	}
	shown.clear()
	return errors.Join(m.app.printResult(rs, func(out io.Writer) { printPerf(p, out, rs) }), err)
}

func printPerf(p *bench.Perf, out io.Writer, rs []bench.Result) {
	fmt.Fprintf(out, "# %s, %d cores, GOMAXPROCS %d, %d B calls, %d B bulk\n", runtime.Version(), runtime.NumCPU(),
		runtime.GOMAXPROCS(0), p.Size, p.Bulk)
	columns := []string{"peer", ">p50 us", ">p99 us"}
	for _, n := range p.Inflight {
		columns = append(columns, ">rate@"+strconv.Itoa(n))
	}
	t := newTable(append(columns, ">bulk MiB/s")...)
	for _, r := range rs {
		row := []string{r.Peer, figureText(r.P50, 1), figureText(r.P99, 1)}
		for _, n := range p.Inflight {
			row = append(row, figureText(r.Rate[strconv.Itoa(n)], 0))
		}
		t.addRow(append(row, figureText(r.Bulk, 0))...)
	}
	t.print(out)
}

// measureMixed measures the latency of calls while bulk transfers are in progress, and prints the result.
func (m *measurement) measureMixed(shown *statusLine) error {
	r, err := m.perf.Mixed()
	if err != nil && !errors.Is(err, bench.ErrStopped) {
		return err
	}
	shown.clear()
	return errors.Join(m.app.printResult(r, func(out io.Writer) {
		t := newTable("calls", ">p50 us", ">p99 us", ">bulk MiB/s")
		t.addRow("alone", figureText(r.IdleP50, 1), figureText(r.IdleP99, 1), figureText(r.IdleBulk, 0))
		t.addRow("beside bulk", figureText(r.BusyP50, 1), figureText(r.BusyP99, 1), figureText(r.Bulk, 0))
		t.print(out)
	}), err)
}

// measureTable measures a table of sizes, and prints each line when its measurement is complete. The columns are those
// of C Mercury's benchmark programs.
func (m *measurement) measureTable(shown *statusLine) error {
	p := &m.perf
	var err error
	switch {
	case m.isOutput:
		err = p.OfGive()
	case bench.OfCalls(m.op) && !m.bothWays:
		err = p.OfTake()
	}
	if err != nil {
		return err
	}
	out := shown.writerAbove(m.app.stdout)
	if !m.app.isJSON {
		column, title, inflight := p.Describe(m.op)
		fmt.Fprintf(out, "# quicksilver %s: %s, %d in flight\n%-10s %20s %20s\n", p.Peer().Scheme(), title, inflight, "# Size", column, "Time (us)")
	}
	t, err := p.Ladder(m.op, func(r bench.Rung) {
		if !m.app.isJSON {
			fmt.Fprintf(out, "%-10d %20.2f %20.2f\n", r.Size, r.Value, r.Time)
		}
	})
	if m.app.isJSON && (err == nil || errors.Is(err, bench.ErrStopped)) {
		shown.clear()
		return errors.Join(show.JSON(m.app.stdout, t), err)
	}
	return err
}

// figureText formats v with the given number of digits. It returns a dash if v was not measured.
func figureText(v float64, digits int) string {
	if v == 0 {
		return "-"
	}
	return strconv.FormatFloat(v, 'f', digits, 64)
}

// measureIdle measures the CPU time and memory that idle peers use.
func (m *measurement) measureIdle() error {
	n := &m.network
	cfg, err := n.newConfig(n.anyListenAddr())
	if err != nil {
		return err
	}
	ctx, stop := m.app.untilSignal()
	defer stop()
	shown := m.app.newStatus()
	defer shown.clear()
	shown.update("%d peers, %v", m.peers+m.callers, m.perf.Time)
	crowd := bench.Crowd{Peers: m.peers, Callers: m.callers, Processes: m.processes}
	crowd.Start = func(addr string, peers int, areCallers bool) (*self.Child, error) {
		args := slices.Concat([]string{"swarm"}, n.secrets.args(), []string{addr, strconv.Itoa(peers)})
		if areCallers {
			args = append(args, "--call")
		}
		return self.Start(swarmReady, args...)
	}
	r, err := bench.Idle(ctx, cfg, n.anyListenAddr(), crowd, m.perf.Time)
	if errors.Is(err, bench.ErrStopped) {
		return errInterrupted
	}
	if err != nil {
		return err
	}
	shown.clear()
	err = m.app.printResult(r, func(out io.Writer) {
		fmt.Fprintf(out, "%d idle peers", r.Peers)
		if r.Callers > 0 {
			fmt.Fprintf(out, " and %d that make %.0f calls a second", r.Callers, r.Rate)
		}
		fmt.Fprintf(out, " in %d processes: %.3f %% of a processor over %.1f s, %.0f bytes for each peer\n", r.Processes, r.CPU, r.Seconds, r.Bytes)
	})
	return errors.Join(err, context.Cause(ctx))
}

// swarmReady is the line that a swarm process prints after each of its peers has received an answer.
const swarmReady = "connected"

// newSwarm returns the hidden command that runs many peers in one process. The process exits when its standard input is
// closed.
func (a *app) newSwarm() *cobra.Command {
	n := network{timeout: 5 * time.Second, spin: -1}
	areCallers := false
	c := &cobra.Command{Use: "swarm ADDRESS PEERS", Hidden: true, Args: wantArgs(2, 2), RunE: func(_ *cobra.Command, args []string) error {
		peers, err := strconv.Atoi(args[1])
		if err != nil {
			return usageError{err.Error()}
		}
		cfg, err := n.newConfig(args[0])
		if err != nil {
			return err
		}
		all, err := bench.Swarm(cfg, n.clientAddr(args[0]), args[0], peers)
		if err != nil {
			return err
		}
		fmt.Fprintln(a.stdout, swarmReady)
		if areCallers {
			if _, err := fmt.Fscanln(os.Stdin, new(string)); err != nil { // waits for bench.Begin
				return nil // the other process has exited
			}
			for _, p := range all {
				go func() { _ = p.CallOn() }() // returns when the process exits or the target fails
			}
		}
		_, err = io.Copy(io.Discard, os.Stdin)
		return err
	}}
	n.secrets.flags(c.Flags())
	c.Flags().BoolVar(&areCallers, "call", false, "make one call after the other, once a line arrives")
	return c
}
