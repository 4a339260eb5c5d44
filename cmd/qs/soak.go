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
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/soak"
	"github.com/quicksilver-rpc/quicksilver/hg"
)

const soakUsage = `soak [flags]

A mixed load over several targets, with faults, and an audit of all of it.

The load: calls of all sizes, answered at once, later or never, one-way calls, pulls and pushes. Some are canceled, also
by another goroutine, some withdrawn or abandoned, some have a deadline. The faults, one every -every on average: a
target is killed and started again at its address (kill), stopped for less or more than the peer timeout (stop), its
connections are reset (reset), nothing passes in one direction or both for a while (stall); the last two over tcp only. The
first target is spared: whatever happens to the others, its calls must succeed.

The audit: every call ends once; no handler runs twice for one call; it has run for a call that succeeded, and has not
for one that says so; every withdraw hears what came of it; answers and bulk data are right; nobody writes memory that was
taken back; a cancel does not wait for a target; when the faults are over everything ends, every target answers, and
goroutines, descriptors and memory are what they were at first.

The last line of the output is the report, in JSON. The exit code is 1 when a promise was broken.
`

func runSoak(args []string, out io.Writer) error {
	fs := flag.NewFlagSet(soakUsage, flag.ContinueOnError)
	var n network
	cfg := soak.Config{Log: io.Discard}
	n.peerFlags(fs)
	fs.DurationVar(&cfg.Time, "time", time.Minute, "`time` of the load, which goes on until each kind of fault has come")
	fs.DurationVar(&cfg.Every, "every", 2*time.Second, "mean `time` between faults")
	fs.IntVar(&cfg.Slots, "inflight", 32, "`calls` in flight to each target")
	fs.Int64Var(&cfg.MaxBulk, "bulk", 1<<20, "`bytes` of the largest transfer")
	fs.Uint64Var(&cfg.Seed, "seed", 0, "`seed` of the load and the faults; 0 draws one, which the report has")
	fs.IntVar(&cfg.Targets, "targets", 4, "how many targets")
	fs.StringVar(&cfg.Transport, "transport", "tcp", "`scheme` of the targets")
	faults := fs.String("faults", "", "which faults, a `list`; none for none, and all without it")
	verbose := fs.Bool("v", false, "tell on the standard error what happens")
	if err := parse(fs, args, 0, 0); err != nil {
		return err
	}
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
	if cfg.HG, err = soakConfig(&n, anywhere(cfg.Transport)); err != nil {
		return err
	}
	cfg.PeerTimeout, cfg.Listen = n.timeout, anywhere(cfg.Transport)
	cfg.Start = func(log, addr string) (*self.Child, error) {
		args := append([]string{"soaktarget", "-peer-timeout", n.timeout.String(), "-log", log}, n.secrets.args()...)
		return self.Start(self.Ready, append(args, addr)...)
	}
	report, err := soak.Run(cfg)
	if report != nil {
		err = errors.Join(json.NewEncoder(out).Encode(report), err, report.Err())
	}
	return err
}

func soakConfig(n *network, addr string) (hg.Config, error) {
	cfg, err := n.config(addr)
	cfg.NA.Envelopes = 0 // the default: the load exceeds it
	return cfg, err
}

// runSoakTarget is a target of a soak, in a process of its own.
func runSoakTarget(args []string, out io.Writer) error {
	fs := flag.NewFlagSet("soaktarget [flags] ADDRESS", flag.ContinueOnError)
	var n network
	n.peerFlags(fs)
	log := fs.String("log", "", "`file` for the tokens of handlers that begin")
	if err := parse(fs, args, 1, 1); err != nil {
		return err
	}
	cfg, err := soakConfig(&n, fs.Arg(0))
	if err != nil {
		return err
	}
	return soak.Target(fs.Arg(0), *log, cfg, func(addr string) { fmt.Fprintln(out, self.Ready+addr) })
}
