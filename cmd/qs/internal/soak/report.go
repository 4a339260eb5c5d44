package soak

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/quicksilver-rpc/quicksilver/internal/test/ledger"
)

// A Report is the result of a soak, which is printed as the last line of the output. The counts that Err checks must be
// zero.
type Report struct {
	Commit  string         `json:"commit,omitempty"`
	Seed    uint64         `json:"seed"`
	Seconds float64        `json:"seconds"`
	Faults  map[string]int `json:"faults"`

	Interrupted bool `json:"interrupted,omitempty"` // the load ended before its time

	*ledger.Audit

	Silent      int      `json:"targets_silent_after_healing"`
	Left        int      `json:"left_at_the_end"`
	SlowCancels int      `json:"slow_cancels"`
	Outgrown    int      `json:"gauges_that_grew"`
	Notes       []string `json:"notes,omitempty"` // details of these four counts

	Cancels    int     `json:"cancels_measured"` // number of canceled calls of the first origin that were measured
	CancelP999 float64 `json:"cancel_to_end_p999_ms"`
	CancelMax  float64 `json:"cancel_to_end_max_ms"`
	Heap       growth  `json:"heap_kib"`       // of this process
	Target     growth  `json:"target_rss_kib"` // of the first target
	Goroutines growth  `json:"goroutines"`     // of this process
	Files      growth  `json:"descriptors"`    // of this process
}

// A growth holds two values of a gauge: the first from when a tenth of the load's time has passed, and the last from
// after the load.
type growth struct {
	First int64 `json:"first"`
	Last  int64 `json:"last"`
}

func (r *Report) addNote(format string, args ...any) {
	if len(r.Notes) < 8 {
		r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
	}
}

// takeSample reads the gauges and stores each value in the field that at returns.
func (r *Report) takeSample(s *soak, at func(*growth) *int64) {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	*at(&r.Heap) = int64(m.HeapAlloc)>>10 - int64(8*cap(s.here.Cancels()))>>10
	*at(&r.Target) = residentKiB(s.targets[0].pid())
	*at(&r.Goroutines) = int64(runtime.NumGoroutine())
	if entries, err := os.ReadDir(filepath.Join("/proc", "self", "fd")); err == nil {
		*at(&r.Files) = int64(len(entries))
	}
}

// slow sets the statistics of how long the first origin's canceled calls took to complete.
func (r *Report) slow(s *soak) {
	all := s.here.Cancels()
	slices.Sort(all)
	n := len(all)
	if n == 0 {
		return
	}
	ms := func(i int) float64 { return float64(all[i].Microseconds()) / 1000 }
	r.Cancels, r.CancelP999, r.CancelMax = n, ms(n*999/1000), ms(n-1)
	// A call to a stopped target completes only when the target resumes or is considered lost. A few slow calls are not
	// significant, because the machine itself may pause for a moment.
	if slow := s.PeerTimeout / 2; n >= 1000 && all[n*99/100] > slow {
		for _, d := range all {
			if d > slow {
				r.SlowCancels++
			}
		}
		r.addNote("a cancel took %v", all[n-1])
	}
}

// countOutgrown counts the gauges that grew by more than can be expected. Each target has pipes and a connection
// through a relay, and memory of the first target's last transfers may not have been garbage-collected yet.
func (r *Report) countOutgrown(s *soak) {
	each := int64(8*(len(s.targets)+len(s.origins)) + 2*s.Callers)
	for _, g := range []struct {
		what string
		growth
		more int64
	}{
		{"goroutines", r.Goroutines, each},
		{"descriptors", r.Files, each},
		{"KiB of heap", r.Heap, 32 << 10},
		{"KiB of the first target", r.Target, 128<<10 + 2*int64(s.Callers*(1+s.Origins))*s.MaxBulk>>10},
	} {
		if g.Last > g.First+g.more {
			r.Outgrown++
			r.addNote("%s: %d, and %d at the end", g.what, g.First, g.Last)
		}
	}
}

// Err returns an error that names the violated guarantees, or nil if there are none.
func (r *Report) Err() error {
	var wrong []string
	for _, f := range []struct {
		n    int
		what string
	}{
		{r.Silent, "targets do not answer although nothing is wrong with them"}, {r.Left, "things are left at the end"},
		{r.SlowCancels, "cancels waited"}, {r.Outgrown, "gauges have grown"},
	} {
		if f.n != 0 {
			wrong = append(wrong, fmt.Sprintf("%d %s", f.n, f.what))
		}
	}
	var err error
	if len(wrong) > 0 {
		err = fmt.Errorf("%s: %s", strings.Join(wrong, ", "), strings.Join(r.Notes, "; "))
	}
	if err = errors.Join(r.Audit.Err(), err); err != nil {
		err = fmt.Errorf("seed %d: %w", r.Seed, err)
	}
	return err
}

// residentKiB returns the resident memory of a process in KiB, or 0 if the system does not report it.
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

// commit returns the commit from which this program was built, or "" if it is unknown.
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
