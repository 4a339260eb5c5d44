package soak

import (
	"context"
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

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/self"
	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A Config says what a soak does. All fields are needed, but Faults and Seed.
type Config struct {
	Transport   string // scheme of the targets
	Targets     int
	Time        time.Duration // of the load, which goes on until each fault has come
	Every       time.Duration // mean time between faults
	Slots       int           // calls in flight to each target
	MaxBulk     int64         // bytes of the largest transfer
	Seed        uint64        // of the load and the faults; 0 draws one
	Faults      []string      // some of Faults
	PeerTimeout time.Duration // that of HG
	HG          hg.Config
	Log         io.Writer // is told what happens
	Listen      string    // where targets listen at first
	// Start starts a process that runs Target.
	Start func(log, addr string) (*self.Child, error)
}

const maxBulk = 1 << 30

// Check says what is wrong with what a user has chosen.
func (c *Config) Check() error {
	if c.Time <= 0 || c.Every <= 0 || c.Slots < 2 || c.Slots > 4096 || c.Slots%2 == 1 || c.Targets < 2 || c.Targets > 64 || c.MaxBulk < 1 || c.MaxBulk > maxBulk {
		return fmt.Errorf("-time and -every must be positive, -inflight an even number from 2 to 4096, -targets 2 to 64, -bulk 1 to 1 GiB")
	}
	for _, k := range c.Faults {
		if !slices.Contains(Faults, k) {
			return fmt.Errorf("-faults has %q, want some of %s, or none", k, strings.Join(Faults, ", "))
		}
		if k == "stop" && !canStop {
			return fmt.Errorf("-faults: processes cannot be stopped on %s", runtime.GOOS)
		}
		if needsRelay(k) && c.Transport != "tcp" {
			return fmt.Errorf("-faults: %s is done to connections, and -transport %s has none", k, c.Transport)
		}
	}
	return nil
}

// Faults are the kinds of faults there are.
var Faults = []string{"kill", "stop", "reset", "stall"}

// FaultsOver returns those that a transport can have.
func FaultsOver(transport string) []string {
	return slices.DeleteFunc(slices.Clone(Faults), func(k string) bool { return needsRelay(k) && transport != "tcp" })
}

// needsRelay reports whether a fault is done to connections.
func needsRelay(fault string) bool { return fault == "reset" || fault == "stall" }

// A soak is one run: the load is driven by the goroutine that called run, the faults by one more, and a third cancels.
//
//	slots ─ Forward ─► relay (tcp) ─► target: token into its log, answer or transfer
//	  ▲ callback ─► ledger           ▲ kill, stop, reset, stall
//	  └─ next                      chaos
type soak struct {
	Config
	dir     string
	targets []*target
	load    *load
	faults  map[string]int // belongs to chaos while it runs
	broken  error          // of chaos
}

// A Report is the last line of the output. Everything from Lost to Outgrown must be zero.
type Report struct {
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

// Run makes the targets, the load and the faults, and audits. Check has found nothing wrong.
func Run(cfg Config) (r *Report, err error) {
	s := &soak{Config: cfg, faults: map[string]int{}}
	if s.Seed == 0 {
		s.Seed = rand.Uint64()>>12 | 1 // a number that every reader of JSON keeps
	}
	if s.dir, err = os.MkdirTemp("", "qs-soak-"); err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(s.dir) }()
	for i := range s.Targets {
		t, err := s.startTarget(i)
		if err != nil {
			return nil, err
		}
		defer t.stop()
		s.targets = append(s.targets, t)
	}
	if s.load, err = newLoad(s); err != nil {
		return nil, err
	}
	defer s.load.close()
	most := s.PeerTimeout + 30*time.Second // for what comes soon, but on a busy machine
	s.load.on = true
	s.load.until(time.Now().Add(most), func() bool { return s.load.hctx.Stats().NA.Peers == s.Targets }) // there is something to break
	begun := time.Now()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	once, chaos, cancels := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() { defer close(chaos); s.chaos(ctx, once) }()
	go func() { defer close(cancels); s.load.cancelAtRandom(ctx) }()
	r = &Report{Commit: commit(), Seed: s.Seed, Faults: s.faults}
	s.load.drive(begun.Add(s.Time/10), true)
	r.sample(s, func(g *growth) *int64 { return &g.First })
	s.load.drive(begun.Add(s.Time), true)
	s.load.until(time.Now().Add(most), func() bool {
		select {
		case <-once:
			return true
		default:
			return false
		}
	})
	stop()
	<-chaos // it has put everything right
	<-cancels
	if s.broken != nil {
		return nil, s.broken
	}
	fmt.Fprintf(s.Log, "soak: the load ends: %v\n", s.load.ledger.outcomes)
	s.load.drive(time.Now().Add(most), false)
	r.Silent = s.load.knock(most)
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
func (r *Report) sample(s *soak, at func(*growth) *int64) {
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
func (r *Report) outgrown(s *soak) {
	each := 8 * int64(len(s.targets))
	for _, g := range []struct {
		what string
		growth
		more int64
	}{
		{"goroutines", r.Goroutines, each},
		{"descriptors", r.Files, each},
		{"KiB of heap", r.Heap, 4 << 10},
		{"KiB of the first target", r.Target, 64<<10 + 2*int64(s.Slots)*s.MaxBulk>>10},
	} {
		if g.Last > g.First+g.more {
			r.Outgrown++
			s.load.ledger.note("%s: %d, and %d at the end", g.what, g.First, g.Last)
		}
	}
}

// Err says which promises were broken.
func (r *Report) Err() error {
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
