package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/self"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/soak"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

const soakAbout = `A mixed load of typed calls from several origins to several targets, with faults, and an audit of every call.

The load: calls with and without repeats (Retry, and an interceptor that repeats), deadlines, cancels, withdraws and hedges at random moments; handlers that answer at once, later, with an error or never; memory and streams lent both ways; one-way calls; nodes that are closed in the middle of it. One origin is this process. The faults, one every --every on average: a target or an origin is killed and started again (kill), stopped for up to twice the peer timeout (stop), ended in order (end); the connections of a target are reset (reset), nothing passes in one direction or both for a while (stall); the last two over tcp, alone or with auto. The first target and this process are spared: calls between them must succeed.

The audit: each call ends once. It ran if the caller was told that it ran, and did not if the caller was told that it did not or that it was withdrawn. It ran once, or as often as it was deliberately repeated. Answers and lent data are right, and nobody touches lent memory after the end. A cancel ends its call at once; the report counts such ends as "canceled on purpose", and a call that ends as canceled though the load has not canceled it is a broken promise. After the faults every target answers, everything ends, and goroutines, descriptors and memory are back where they were.

The load continues until each kind of fault has occurred and all calls have ended, so a short --time takes longer: half a minute more with the default --every and --peer-timeout. With auto it does not wait for reset and stall, because shared memory may carry everything. Ctrl-C ends the load early; the audit is made all the same. The exit code is 1 when a promise was broken. The same --seed draws the same load and faults, but not at the same moments.`

func (a *app) newSoak() *cobra.Command {
	s := soakCommand{cfg: soak.Config{Log: io.Discard}}
	c := &cobra.Command{
		Use: "soak", Short: "Load targets, break them, and audit what became of every call", Long: soakAbout,
		Example: `  qs soak
  qs soak --time 10m --transport udp --seed 7
  qs soak --faults kill,stop --json`,
		Args: wantArgs(0, 0), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error { return a.runSoak(&s) },
	}
	fs, cfg := c.Flags(), &s.cfg
	s.network.peerFlags(fs)
	fs.DurationVarP(&cfg.Time, "time", "d", time.Minute, "`time` of the load, which continues until each kind of fault has occurred")
	fs.DurationVar(&cfg.Every, "every", 2*time.Second, "mean `time` between faults")
	fs.IntVarP(&cfg.Callers, "inflight", "n", 16, "`calls` in flight from each origin")
	fs.IntVar(&cfg.Origins, "origins", 3, "how many `origins`, beside this process")
	fs.IntVar(&cfg.Streams, "streams", 8, "`calls` with a stream that each origin has open: so many with items, as many that read, and as many that write")
	fs.Int64Var(&cfg.MaxBulk, "bulk", 256<<10, "`bytes` of the largest transfer")
	fs.Uint64Var(&cfg.Seed, "seed", 0, "`seed` of the load and the faults; 0 draws one, which is in the report")
	fs.IntVar(&cfg.Targets, "targets", 4, "how many `targets`")
	fs.StringVar(&cfg.Transport, "transport", "tcp", "`scheme` of the targets; auto: tcp, with sm beside it")
	fs.StringVar(&s.faults, "faults", "", "`list` of faults, such as kill,stop, or none; by default all: kill, stop, end, reset, stall")
	fs.BoolVarP(&s.verbose, "verbose", "v", false, "log to the standard error")
	registerChoices(c, "transport", append(na.Schemes(), "auto")...)
	registerChoices(c, "faults", append(slices.Clone(soak.Faults), "none")...)
	return c
}

// A soakCommand holds the flags of qs soak.
type soakCommand struct {
	network network
	cfg     soak.Config
	faults  string
	verbose bool
}

// runSoak runs the load with faults, audits the result, and prints the report.
func (a *app) runSoak(s *soakCommand) error {
	n, cfg := &s.network, &s.cfg
	if err := n.setTransport(cfg.Transport); err != nil {
		return err
	}
	switch s.faults {
	case "none":
	case "":
		cfg.Faults = soak.FaultsOver(cfg.Transport)
	default:
		cfg.Faults = strings.Split(s.faults, ",")
	}
	if err := cfg.Check(); err != nil {
		return usageError{err.Error()}
	}
	var err error
	if cfg.HG, err = soakConfig(n, n.anyListenAddr()); err != nil {
		return err
	}
	cfg.PeerTimeout, cfg.Listen, cfg.To = n.timeout, n.anyListenAddr(), n.clientAddr(n.transport)
	start := func(what, book string, more ...string) (*self.Child, error) {
		args := append([]string{what, "--peer-timeout", n.timeout.String(), "--book", book}, n.secrets.args()...)
		return self.Start(self.Ready, append(args, more...)...)
	}
	cfg.StartTarget = func(book, addr string) (*self.Child, error) {
		return start("soaktarget", book, n.withSharedMemory(strings.TrimSuffix(addr, ",sm://")))
	}
	cfg.StartOrigin = func(book string, c soak.Calls) (*self.Child, error) {
		calls, err := json.Marshal(c)
		if err != nil {
			return nil, err
		}
		return start("soakorigin", book, string(calls))
	}
	ctx, stop := a.untilSignal()
	defer stop()
	shown := a.newStatus()
	defer shown.clear()
	if s.verbose {
		cfg.Log = shown.writerAbove(a.stderr)
	}
	cfg.Show = func(now soak.Status) {
		if now.Ending {
			shown.update("%v: the load has ended; the audit follows", now.For.Round(time.Second))
			return
		}
		shown.update("%v of %v: %s calls from this process; faults: %s", now.For.Round(time.Second), cfg.Time, humanize.Comma(now.Calls), countsText(now.Faults))
	}
	report, err := soak.Run(ctx, *cfg)
	shown.clear()
	if report == nil {
		return err
	}
	err = errors.Join(err, report.Err())
	if printed := a.printResult(report, func(out io.Writer) { printSoak(report, cfg.Faults, err == nil, out) }); printed != nil {
		return errors.Join(err, printed)
	}
	if err != nil {
		return brokenPromiseError{err}
	}
	return context.Cause(ctx)
}

// countsText returns a text that lists counts with their names, largest first.
func countsText(counts map[string]int) string {
	names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	for i, name := range names {
		names[i] = humanize.Comma(int64(counts[name])) + " " + name
	}
	return cmp.Or(strings.Join(names, ", "), "none")
}

// printSoak prints a report as text. The parameter kept reports whether all guarantees held.
func printSoak(r *soak.Report, faults []string, kept bool, out io.Writer) {
	missing := slices.DeleteFunc(slices.Clone(faults), func(name string) bool { return r.Faults[name] > 0 })
	l := newList()
	count := func(n int) string { return humanize.Comma(int64(n)) }
	interrupted := ""
	if r.Interrupted {
		interrupted = ", interrupted"
	}
	l.addRow("time", fmt.Sprintf("%.1f s%s", r.Seconds, interrupted))
	l.addRow("seed", fmt.Sprint(r.Seed))
	l.addRow("calls", count(r.Calls))
	l.addRow("of these ran", count(r.Executed))
	l.addRow("more than once, as they may", count(r.Repeated))
	l.addRow("of origins that died", count(r.Cut))
	l.addRow("faults", countsText(r.Faults))
	if len(missing) > 0 {
		l.addRow("faults that did not occur", strings.Join(missing, ", "))
	}
	l.addRow("outcomes", countsText(r.Outcomes))
	l.addRow("withdrawals", countsText(r.Withdraws))
	l.addRow("cancel to end", fmt.Sprintf("%s measured, p99.9 %.1f ms, max %.1f ms", count(r.Cancels), r.CancelP999, r.CancelMax))
	l.addRow("heap", fmt.Sprintf("%s, at the end %s", bytesText(r.Heap.First<<10), bytesText(r.Heap.Last<<10)))
	l.addRow("first target's memory", fmt.Sprintf("%s, at the end %s", bytesText(r.Target.First<<10), bytesText(r.Target.Last<<10)))
	l.addRow("goroutines", fmt.Sprintf("%d, at the end %d", r.Goroutines.First, r.Goroutines.Last))
	l.addRow("descriptors", fmt.Sprintf("%d, at the end %d", r.Files.First, r.Files.Last))
	l.print(out)
	switch {
	case !kept:
		fmt.Fprintln(out, "A promise was BROKEN.")
	case r.Interrupted:
		fmt.Fprintln(out, "All promises were kept until the interrupt.")
	default:
		fmt.Fprintln(out, "All promises were kept.")
	}
}

func soakConfig(n *network, addr string) (hg.Config, error) {
	cfg, err := n.newConfig(addr)
	cfg.NA.Envelopes = 0 // 0 selects the default, which the load exceeds
	cfg.Codec = nil      // the codec of typed methods
	return cfg, err
}

// A soakChild is a target or an origin that a soak runs in another process. The process writes its
// log to a file, called its book.
type soakChild struct {
	network network
	book    string
}

// newSoakChild returns the command that a soak runs in another process. The command calls run with
// its argument.
func newSoakChild(use string, run func(s *soakChild, arg string) error) *cobra.Command {
	var s soakChild
	c := &cobra.Command{Use: use, Hidden: true, Args: wantArgs(1, 1), RunE: func(_ *cobra.Command, args []string) error {
		return run(&s, args[0])
	}}
	s.network.peerFlags(c.Flags())
	c.Flags().StringVar(&s.book, "book", "", "`file` for the log of the process")
	return c
}

// newSoakTarget returns the command that runs a target.
func (a *app) newSoakTarget() *cobra.Command {
	return newSoakChild("soaktarget ADDRESS", func(s *soakChild, addr string) error {
		cfg, err := soakConfig(&s.network, addr)
		if err != nil {
			return err
		}
		return soak.Target(addr, s.book, cfg, func(addr string) { fmt.Fprintln(a.stdout, self.Ready+addr) })
	})
}

// newSoakOrigin returns the command that runs an origin. The command's argument is a JSON-encoded
// Calls value.
func (a *app) newSoakOrigin() *cobra.Command {
	return newSoakChild("soakorigin CALLS", func(s *soakChild, arg string) error {
		var c soak.Calls
		if err := json.Unmarshal([]byte(arg), &c); err != nil {
			return err
		}
		cfg, err := soakConfig(&s.network, c.Targets[0])
		if err != nil {
			return err
		}
		return soak.Origin(s.book, c, cfg, func() { fmt.Fprintln(a.stdout, self.Ready) })
	})
}
