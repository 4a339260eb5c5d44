package ledger

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"time"

	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// The rare states that seeds are to reach.
const (
	reachTooLate          = iota // canceled after its end and before its callback
	reachCallback                // something is canceled inside a callback
	reachTie                     // canceled at the very time of its deadline
	reachReused                  // an answer leaves for a call that is over, and its handle has another call by now
	reachFree                    // memory is taken back while it is being moved
	reachRestart                 // a node crashes with operations in flight, or calls to it
	reachNoCredit                // requests that had to wait for an envelope
	reachFinalize                // a class is closed in the middle of everything
	reachFinalizeCanceled        // callbacks of canceled calls have not run
	reachShutdown                // Shutdown with callbacks that have not run
	reachDispatched              // requests that Run has run
	reachWaited                  // calls for whose end a goroutine waited
	reachEnd
)

var reachText = [reachEnd]string{"cancel between arrival and trigger", "cancel in callback", "deadline tie", "late response to reused handle",
	"free during transfer", "restart with ops in flight", "credit exhaustion", "finalize", "finalize with pending cancel",
	"shutdown with ops in flight", "dispatched requests", "calls waited for"}

type coverage [reachEnd]int64

// totals is the sum of what scenarios did.
type totals struct {
	seeds, ops, leastOps int64
	outcomes             map[string]int64
	cancels, late        int64
	virtual              time.Duration
	world                sim.Stats
	broken               broken
	replayed, mismatches int64 // seeds that were run twice, and of these such that differed
	restarts             int64 // of nodes that had crashed or had been closed
	reach                coverage
}

func (a *totals) add(s *scenario) {
	if a.outcomes == nil {
		a.outcomes = map[string]int64{}
	}
	if a.seeds == 0 || s.ops < a.leastOps {
		a.leastOps = s.ops
	}
	a.seeds++
	a.ops += s.ops
	a.cancels += s.cancels
	a.restarts += int64(s.made) - int64(len(s.nodes))
	a.virtual += s.w.Now()
	a.late += s.late
	a.broken.Lost += s.broken.Lost
	a.broken.Doubled += s.broken.Doubled
	a.broken.Twice += s.broken.Twice
	a.broken.Writes += s.broken.Writes
	for k, v := range s.outcomes {
		a.outcomes[k] += v
	}
	for i, n := range s.reach {
		a.reach[i] += n
	}
	st := s.w.Stats()
	sum, more := reflect.ValueOf(&a.world).Elem(), reflect.ValueOf(&st).Elem()
	for i := range sum.NumField() {
		sum.Field(i).SetUint(sum.Field(i).Uint() + more.Field(i).Uint())
	}
}

// A report is the result of a run in one line. It has the number of broken promises, which must be
// 0.
type report struct {
	Commit         string           `json:"commit"`
	Seeds          int64            `json:"seeds"`
	Ops            int64            `json:"ops"`
	Events         uint64           `json:"events"`
	VirtualHours   float64          `json:"virtual_hours"`
	Faults         map[string]int64 `json:"faults"`
	Completions    map[string]int64 `json:"completions"`
	Lost           int64            `json:"lost"`
	Doubled        int64            `json:"doubled"`
	LateDropped    int64            `json:"late_dropped"`
	ExecutedTwice  int64            `json:"executed_twice"`
	LateWrites     int64            `json:"writes_after_completion"`
	Replayed       int64            `json:"replayed"`
	ReplayMismatch int64            `json:"replay_mismatch"`
	Restarts       int64            `json:"restarts"`
	Cancels        int64            `json:"cancels"`
	Reach          map[string]int64 `json:"reach"`
	StepsTaken     int              `json:"steps_taken"` // of state machines
	StepsLegal     int              `json:"steps_legal"`
}

func (a *totals) report() *report {
	st := &a.world
	r := &report{
		Seeds: a.seeds, Ops: a.ops, Events: st.Events, VirtualHours: float64(a.virtual.Milliseconds()/36) / 1e5, Completions: a.outcomes,
		Lost: a.broken.Lost, Doubled: a.broken.Doubled, LateDropped: a.late, ExecutedTwice: a.broken.Twice, LateWrites: a.broken.Writes,
		Replayed: a.replayed, ReplayMismatch: a.mismatches, Restarts: a.restarts, Cancels: a.cancels, Reach: map[string]int64{}, Faults: map[string]int64{},
	}
	for name, n := range map[string]uint64{"loss": st.Lost, "duplicate": st.Duplicated, "reorder": st.Reordered, "corrupt": st.Corrupted,
		"reset": st.Resets, "clog": st.Clogs, "partition": st.Partitions, "pause": st.Pauses, "crash": st.Crashes, "refuse": st.Refusals,
		"post": st.Failed} {
		r.Faults[name] = int64(n)
	}
	for i, text := range reachText {
		r.Reach[text] = a.reach[i]
	}
	r.Reach["short write"], r.Reach["full window"] = int64(st.Cuts), int64(st.Full)
	if head, err := exec.Command("git", "rev-parse", "HEAD").Output(); err == nil { // tests are built without it
		r.Commit = strings.TrimSpace(string(head))
	}
	return r
}

// String is the report as JSON in one line.
func (r *report) String() string {
	b, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// write appends the report to a file.
func (r *report) write(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(r.String() + "\n")
	return errors.Join(err, f.Close())
}
