package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/self"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/soak"
	"github.com/quicksilver-rpc/quicksilver/hg"
)

const soakUsage = `soak [flags]

A mixed load of typed calls from several origins to several targets, with faults, and an audit of every call.

The load: calls with and without repeats (Retry, and an interceptor that repeats), deadlines, cancels, withdraws and hedges at
random moments; handlers that answer at once, later, with an error or never; memory and streams lent both ways; one-way calls;
nodes that are closed in the middle of it. One origin is this process. The faults, one every -every on average: a target or an
origin is killed and started again (kill), stopped for up to twice the peer timeout (stop), ended in order (end); the connections
of a target are reset (reset), nothing passes in one direction or both for a while (stall); the last two over tcp, alone or with auto. The
first target and this process are spared: calls between them must succeed.

The audit: each call ends once. It ran if the caller was told that it ran, and did not if the caller was told that it did not or
that it was withdrawn. It ran once, or as often as it was deliberately repeated. Answers and lent data are right, and nobody touches
lent memory after the end. A cancel ends its call at once. After the faults every target answers, everything ends, and goroutines,
descriptors and memory are back where they were.

The load continues until each kind of fault has occurred and all calls have ended, so a short -time takes longer: half a minute more
with the default -every and -peer-timeout. With auto it does not wait for reset and stall, because shared memory may carry everything.
The last line of the output is the report, in JSON. The exit code is 1 when a promise was
broken. The same -seed draws the same load and faults, but not at the same moments.
`

func runSoak(args []string, out io.Writer) error {
	fs := flag.NewFlagSet(soakUsage, flag.ContinueOnError)
	var n network
	cfg := soak.Config{Log: io.Discard}
	n.peerFlags(fs)
	fs.DurationVar(&cfg.Time, "time", time.Minute, "`time` of the load, which continues until each kind of fault has occurred")
	fs.DurationVar(&cfg.Every, "every", 2*time.Second, "mean `time` between faults")
	fs.IntVar(&cfg.Callers, "inflight", 16, "`calls` in flight from each origin")
	fs.IntVar(&cfg.Origins, "origins", 3, "how many origins, beside this process")
	fs.IntVar(&cfg.Streams, "streams", 8, "`calls` with a stream that each origin has open: so many with items, as many that read, and as many that write")
	fs.Int64Var(&cfg.MaxBulk, "bulk", 256<<10, "`bytes` of the largest transfer")
	fs.Uint64Var(&cfg.Seed, "seed", 0, "`seed` of the load and the faults; 0 draws one, which is in the report")
	fs.IntVar(&cfg.Targets, "targets", 4, "how many targets")
	fs.StringVar(&cfg.Transport, "transport", "tcp", "`scheme` of the targets; auto: tcp, with sm beside it")
	faults := fs.String("faults", "", "`list` of faults, or none; all by default")
	verbose := fs.Bool("v", false, "log to the standard error")
	if err := parse(fs, args, 0, 0); err != nil {
		return err
	}
	n.choose(cfg.Transport)
	switch *faults {
	case "none":
	case "":
		cfg.Faults = soak.FaultsOver(cfg.Transport)
	default:
		cfg.Faults = strings.Split(*faults, ",")
	}
	if err := cfg.Check(); err != nil {
		return usageError{err.Error()}
	}
	if *verbose {
		cfg.Log = os.Stderr
	}
	var err error
	if cfg.HG, err = soakConfig(&n, n.anywhere()); err != nil {
		return err
	}
	cfg.PeerTimeout, cfg.Listen, cfg.To = n.timeout, n.anywhere(), n.to(n.transport)
	start := func(what, book string, more ...string) (*self.Child, error) {
		args := append([]string{what, "-peer-timeout", n.timeout.String(), "-book", book}, n.secrets.args()...)
		return self.Start(self.Ready, append(args, more...)...)
	}
	cfg.StartTarget = func(book, addr string) (*self.Child, error) {
		return start("soaktarget", book, n.both(strings.TrimSuffix(addr, ",sm://")))
	}
	cfg.StartOrigin = func(book string, c soak.Calls) (*self.Child, error) {
		calls, err := json.Marshal(c)
		if err != nil {
			return nil, err
		}
		return start("soakorigin", book, string(calls))
	}
	report, err := soak.Run(cfg)
	if report != nil {
		err = errors.Join(show.JSON(out, report), err, report.Err())
	}
	return err
}

func soakConfig(n *network, addr string) (hg.Config, error) {
	cfg, err := n.config(addr)
	cfg.NA.Envelopes = 0 // the default: the load exceeds it
	cfg.Codec = nil      // types
	return cfg, err
}

// soakFlags are those of a process that a soak starts.
func soakFlags(name string, args []string) (n network, book string, fs *flag.FlagSet, err error) {
	fs = flag.NewFlagSet(name, flag.ContinueOnError)
	n.peerFlags(fs)
	fs.StringVar(&book, "book", "", "`file` for the log of the process")
	err = parse(fs, args, 1, 1)
	return n, book, fs, err
}

// runSoakTarget is a target of a soak, in a process of its own.
func runSoakTarget(args []string, out io.Writer) error {
	n, book, fs, err := soakFlags("soaktarget [flags] ADDRESS", args)
	if err != nil {
		return err
	}
	cfg, err := soakConfig(&n, fs.Arg(0))
	if err != nil {
		return err
	}
	return soak.Target(fs.Arg(0), book, cfg, func(addr string) { fmt.Fprintln(out, self.Ready+addr) })
}

// runSoakOrigin is an origin of one.
func runSoakOrigin(args []string, out io.Writer) error {
	n, book, fs, err := soakFlags("soakorigin [flags] CALLS", args)
	if err != nil {
		return err
	}
	var c soak.Calls
	if err := json.Unmarshal([]byte(fs.Arg(0)), &c); err != nil {
		return err
	}
	cfg, err := soakConfig(&n, c.Targets[0])
	if err != nil {
		return err
	}
	return soak.Origin(book, c, cfg, func() { fmt.Fprintln(out, self.Ready) })
}
