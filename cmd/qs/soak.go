package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
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

// A soak is one run: the load is driven by the goroutine that called run, the faults by one more, and a third cancels.
//
//	slots ─ Forward ─► relay (tcp) ─► target: token into its log, answer or transfer
//	  ▲ callback ─► ledger           ▲ kill, stop, reset, stall
//	  └─ next                      chaos
type soak struct {
	net     network
	time    time.Duration
	every   time.Duration
	slots   int
	maxBulk int64
	seed    uint64
	kinds   []string
	dir     string
	log     io.Writer

	targets []*soakTarget
	load    *soakLoad
	faults  map[string]int // belongs to chaos while it runs
	broken  error          // of chaos
}

// A soakReport is the last line of the output. Everything from Lost to Outgrown must be zero.
type soakReport struct {
	Commit      string           `json:"commit,omitempty"`
	Seed        uint64           `json:"seed"`
	Seconds     float64          `json:"seconds"`
	Ops         int              `json:"ops"`
	Faults      map[string]int   `json:"faults"`
	Completions map[string]int64 `json:"completions"`

	Lost          int `json:"lost"`
	Doubled       int `json:"doubled"`
	ExecutedTwice int `json:"executed_twice"`
	WrongFate     int `json:"wrong_fate"`
	WrongAnswers  int `json:"wrong_answers"`
	LateWrites    int `json:"writes_after_completion"`
	Bystander     int `json:"bystander_errors"`
	Silent        int `json:"targets_silent_after_healing"`
	Left          int `json:"left_at_the_end"`
	Untold        int `json:"withdraws_without_result"`
	SlowCancels   int `json:"slow_cancels"`
	Outgrown      int `json:"gauges_that_grew"`

	LateDropped int64    `json:"late_dropped"`
	PeersLost   int64    `json:"peers_lost"`
	Cancels     int      `json:"cancels_measured"`
	CancelP999  float64  `json:"cancel_to_callback_p999_ms"`
	CancelMax   float64  `json:"cancel_to_callback_max_ms"`
	Longest     float64  `json:"longest_op_s"`
	Heap        growth   `json:"heap_KiB"`       // of this process, without the ledger
	Target      growth   `json:"target_rss_KiB"` // of the first target
	Goroutines  growth   `json:"goroutines"`     // of this process
	Files       growth   `json:"descriptors"`    // of this process
	FirstWrong  []string `json:"first_wrong,omitempty"`
}

// A growth is a gauge after the first tenth of a run, and after the load has ended.
type growth struct {
	First int64 `json:"first"`
	Last  int64 `json:"last"`
}

var soakFaults = []string{"kill", "stop", "reset", "stall"}

// needsRelay reports whether a fault is done to connections.
func needsRelay(fault string) bool { return fault == "reset" || fault == "stall" }

func runSoak(args []string, out io.Writer) error {
	fs := flag.NewFlagSet(soakUsage, flag.ContinueOnError)
	s := &soak{log: io.Discard, faults: map[string]int{}}
	s.net.peerFlags(fs)
	fs.DurationVar(&s.time, "time", time.Minute, "`time` of the load")
	fs.DurationVar(&s.every, "every", 2*time.Second, "mean `time` between faults")
	fs.IntVar(&s.slots, "inflight", 32, "`calls` in flight to each target")
	fs.Int64Var(&s.maxBulk, "bulk", 1<<20, "`bytes` of the largest transfer")
	fs.Uint64Var(&s.seed, "seed", 0, "`seed` of the load and the faults; 0 draws one, which the report has")
	targets := fs.Int("targets", 4, "how many targets")
	fs.StringVar(&s.net.transport, "transport", "tcp", "`scheme` of the targets")
	faults := fs.String("faults", "", "which faults, a `list`; none for none, and all without it")
	verbose := fs.Bool("v", false, "tell on the standard error what happens")
	if err := parse(fs, args, 0, 0); err != nil {
		return err
	}
	if s.time <= 0 || s.every <= 0 || s.slots < 2 || s.slots > 4096 || s.slots%2 == 1 || *targets < 2 || *targets > 64 || s.maxBulk < 1 || s.maxBulk > maxMove {
		return usageError{"-time and -every must be positive, -inflight an even number from 2 to 4096, -targets 2 to 64, -bulk 1 to 1 GiB"}
	}
	switch *faults {
	case "none":
	case "":
		s.kinds = slices.DeleteFunc(slices.Clone(soakFaults), func(k string) bool { return needsRelay(k) && s.net.transport != "tcp" })
	default:
		s.kinds = strings.Split(*faults, ",")
	}
	for _, k := range s.kinds {
		if !slices.Contains(soakFaults, k) {
			return usageError{fmt.Sprintf("-faults has %q, want some of %s, or none", k, strings.Join(soakFaults, ", "))}
		}
		if k == "stop" && !canStop {
			return usageError{"-faults: processes cannot be stopped on " + runtime.GOOS}
		}
		if needsRelay(k) && s.net.transport != "tcp" {
			return usageError{fmt.Sprintf("-faults: %s is done to connections, and -transport %s has none", k, s.net.transport)}
		}
	}
	if s.seed == 0 {
		s.seed = rand.Uint64()>>12 | 1 // a number that every reader of JSON keeps
	}
	if *verbose {
		s.log = os.Stderr
	}
	report, err := s.run(*targets)
	if report != nil {
		err = errors.Join(json.NewEncoder(out).Encode(report), err, report.err())
	}
	return err
}

// run makes the targets, the load and the faults, and audits.
func (s *soak) run(targets int) (r *soakReport, err error) {
	if s.dir, err = os.MkdirTemp("", "qs-soak-"); err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(s.dir) }()
	for i := range targets {
		t, err := s.startTarget(i)
		if err != nil {
			return nil, err
		}
		defer t.stop()
		s.targets = append(s.targets, t)
	}
	if s.load, err = newSoakLoad(s); err != nil {
		return nil, err
	}
	defer s.load.close()
	begun := time.Now()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	chaos, cancels := make(chan struct{}), make(chan struct{})
	go func() { defer close(chaos); s.chaos(ctx) }()
	go func() { defer close(cancels); s.load.cancelAtRandom(ctx) }()
	r = &soakReport{Commit: commit(), Seed: s.seed, Faults: s.faults}
	s.load.drive(begun.Add(s.time/10), true)
	r.sample(s, func(g *growth) *int64 { return &g.First })
	s.load.drive(begun.Add(s.time), true)
	stop()
	<-chaos // it has put everything right
	<-cancels
	if s.broken != nil {
		return nil, s.broken
	}
	fmt.Fprintf(s.log, "soak: the load ends: %v\n", s.load.ledger.outcomes)
	s.load.drive(time.Now().Add(s.net.timeout+30*time.Second), false)
	r.Silent = s.load.knock(s.net.timeout + 30*time.Second)
	r.sample(s, func(g *growth) *int64 { return &g.Last })
	r.Seconds = time.Since(begun).Seconds()
	s.load.report(r)
	r.outgrown(s)
	for _, t := range s.targets {
		t.stop()
		ran, err := os.ReadFile(t.log)
		if err != nil {
			return nil, err
		}
		s.load.ledger.heard(ran)
	}
	s.load.ledger.audit(r)
	return r, nil
}

// sample reads the gauges.
func (r *soakReport) sample(s *soak, at func(*growth) *int64) {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	*at(&r.Heap) = int64(m.HeapAlloc)>>10 - int64(s.load.ledger.size()+8*cap(s.load.cancels))>>10
	*at(&r.Target) = residentKiB(s.targets[0].pid())
	*at(&r.Goroutines) = int64(runtime.NumGoroutine())
	if entries, err := os.ReadDir(filepath.Join("/proc", "self", "fd")); err == nil {
		*at(&r.Files) = int64(len(entries))
	}
}

// outgrown counts the gauges that grew by more than a load can explain that has begun again since: each target has a
// connection through a relay and pipes, and what the first target moved last may wait for its collector.
func (r *soakReport) outgrown(s *soak) {
	each := 8 * int64(len(s.targets))
	for _, g := range []struct {
		what string
		growth
		more int64
	}{
		{"goroutines", r.Goroutines, each},
		{"descriptors", r.Files, each},
		{"KiB of heap", r.Heap, 4 << 10},
		{"KiB of the first target", r.Target, 64<<10 + 2*int64(s.slots)*s.maxBulk>>10},
	} {
		if g.Last > g.First+g.more {
			r.Outgrown++
			s.load.ledger.note("%s: %d, and %d at the end", g.what, g.First, g.Last)
		}
	}
}

// err says which promises were broken.
func (r *soakReport) err() error {
	var wrong []string
	for _, f := range []struct {
		n    int
		what string
	}{
		{r.Lost, "calls have not ended"}, {r.Doubled, "calls ended twice"}, {r.ExecutedTwice, "calls ran twice"},
		{r.WrongFate, "calls have the wrong fate"}, {r.WrongAnswers, "calls got wrong bytes"},
		{r.LateWrites, "times memory was written after it was taken back"}, {r.Bystander, "calls of the spared target failed"},
		{r.Silent, "targets do not answer although nothing is wrong with them"}, {r.Left, "things are left at the end"},
		{r.Untold, "withdraws have no result"}, {r.SlowCancels, "cancels waited"}, {r.Outgrown, "gauges have grown"},
	} {
		if f.n != 0 {
			wrong = append(wrong, fmt.Sprintf("%d %s", f.n, f.what))
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("%s; seed %d; first: %s", strings.Join(wrong, ", "), r.Seed, strings.Join(r.FirstWrong, "; "))
}

// residentKiB returns the resident memory of a process, where the system tells.
func residentKiB(pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(b), "VmRSS:")
	var kib int64
	_, _ = fmt.Sscan(after, &kib)
	return kib
}

// commit returns what this program was built from, as far as is known.
func commit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return ""
}
