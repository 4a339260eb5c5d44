package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// A scenario is one seed: a world, nodes with random programs, and the ledger.
type scenario struct {
	options
	w      *sim.World
	rng    *rand.Rand
	nodes  []*actor // those that are alive
	names  []string
	rpcs   []string
	quota  int           // operations of each node
	calmed time.Duration // when faults and new work ended; 0 before
	failed error
	kind   string // kind of the failure: equal for two runs that fail in the same way

	ops      int64
	made     uint64
	calls    []*callEntry // by token, from 1
	outcomes map[string]int64
	cancels  int64 // operations that were canceled in flight
	late     int64 // messages without a receiver
	watched  []retiredMemory
	came     map[string]int // nodes, by the place where they meet after the calm
	parting  bool           // only operations for the end of the world are begun
	broken   broken
	reach    coverage
}

// A callEntry is one line of the ledger: a forward, a response, a transfer, a lookup or a withdraw.
type callEntry struct {
	token     uint64
	kind      string
	by        *actor
	callbacks int
	ran       int
	err       error
	to        na.Addr // of a call: context 0 of the node
	oneWay    bool
	refused   bool // it was not accepted
	canceled  bool // Cancel was called while it was in flight
	withdrawn bool // it was taken back, or the wait for that is over
	begun     time.Duration
	deadline  time.Duration
	overdue   int // number of times that it was found in flight after its deadline
	lent      *lentRegion
	handle    *originHandle
	of        *callEntry // of a response, a withdraw or a transfer: the call
	response  *callEntry // the last that was accepted
	result    hg.WithdrawResult
	over      bool // the call had ended or was canceled when its withdraw began
}

// retiredMemory is memory that must not be written any more.
type retiredMemory struct {
	what string
	b    []byte
}

// broken counts the promises that were not kept.
type broken struct{ Lost, Doubled, Twice, Writes int64 }

const poison = 0xE7

var poisoned = bytes.Repeat([]byte{poison}, 1<<20+na.MaxRoom)

func newScenario(seed uint64) *scenario { return newScenarioOf(drawOptions(seed)) }

func newScenarioOf(o options) *scenario {
	s := &scenario{options: o, rng: newRand(o.Seed, 1<<32), outcomes: map[string]int64{}, came: map[string]int{}}
	s.w = sim.NewWorld(sim.Config{Seed: o.Seed, Level: o.Level, NoAssist: o.NoAssist, Faults: o.Faults})
	for i := range o.Nodes {
		s.names = append(s.names, fmt.Sprintf("n%d", i))
	}
	s.quota = (o.Ops + o.Nodes - 1) / o.Nodes
	for _, r := range rpcs {
		if r.act == 0 || s.isOn(r.act) {
			s.rpcs = append(s.rpcs, r.name)
		}
	}
	return s
}

// isOn reports whether programs perform this action.
func (s *scenario) isOn(what actions) bool { return !s.Off.has(what) }

func (s *scenario) summary() string {
	return fmt.Sprintf("options %v\nops %d, outcomes %v, virtual %v, %+v", &s.options, s.ops, s.outcomes, s.w.Now(), s.w.Stats())
}

// fail takes note of the first promise that was broken.
func (s *scenario) fail(format string, args ...any) {
	if s.failed == nil {
		s.failed, s.kind = fmt.Errorf(format, args...), format
	}
}

// run runs the world from beginning to end; its error names the promise that was broken.
func (s *scenario) run() (err error) {
	panicked := false
	defer func() {
		if !panicked { // else it may have left locks behind, for which the others would wait
			s.w.Close()
		}
	}()
	defer func() {
		if r := recover(); r != nil { // the panic of a coroutine
			panicked = true
			s.fail("%v", r)
			first, _, _ := strings.Cut(fmt.Sprint(r), "\n")
			_, s.kind, _ = strings.Cut(first, "): ")
			err = s.failed
		}
	}()
	for i := range s.names {
		s.start(i)
	}
	s.w.Go("chaos", s.runFaults)
	if err := s.w.Run(2 * time.Hour); err != nil {
		if s.failed == nil {
			s.kind = fmt.Sprint(errors.Is(err, sim.ErrDeadlock), errors.Is(err, sim.ErrLimit))
		}
		return errors.Join(s.failed, err)
	}
	s.audit()
	return s.failed
}

// runFaults crashes nodes and closes classes, all of which begin again, and calms the world when
// the work is done.
func (s *scenario) runFaults() {
	type strike struct {
		at    int // after this number of operations
		close bool
	}
	var strikes []strike
	for range s.Crashes {
		strikes = append(strikes, strike{s.rng.IntN(s.Ops), false})
	}
	for range s.Closes {
		strikes = append(strikes, strike{s.rng.IntN(s.Ops), true})
	}
	slices.SortFunc(strikes, func(a, b strike) int { return a.at - b.at })
	for s.failed == nil {
		s.w.Sleep(time.Duration(1+s.rng.IntN(10_000)) * time.Microsecond)
		done, working := 0, false
		for _, a := range s.nodes {
			done += a.ops
			working = working || a.ops < s.quota
		}
		if !working {
			break
		}
		if len(strikes) == 0 || done < strikes[0].at {
			continue
		}
		i := s.rng.IntN(len(s.nodes))
		if strikes[0].close {
			s.nodes[i].finalize()
		} else {
			s.crash(i)
		}
		strikes = strikes[1:]
	}
	s.w.SetFaults(sim.Faults{})
	s.w.Heal()
	s.calmed = s.w.Now()
}

// crash ends a node and starts it again.
func (s *scenario) crash(i int) {
	old := s.nodes[i]
	if slices.ContainsFunc(s.calls, func(c *callEntry) bool {
		return c.callbacks == 0 && !c.refused && !c.by.crashed && (c.by == old || c.to == na.MakeAddr("sim://"+s.names[i], 0))
	}) {
		s.reach[reachRestart]++
	}
	old.crashed = true
	old.node.Crash()
	s.w.Sleep(time.Duration(s.rng.Int64N(1 << s.rng.IntN(32))))
	s.start(i).ops = old.ops
}

// start opens a node's class and runs its program.
func (s *scenario) start(i int) *actor {
	s.made++
	a := &actor{s: s, i: i, rng: newRand(s.Seed, s.made), node: s.w.Node(s.names[i]), order: map[sessionPath]uint64{}}
	if i < len(s.nodes) {
		s.nodes[i] = a
	} else {
		s.nodes = append(s.nodes, a)
	}
	a.node.Go(a.runActor)
	return a
}

// entry returns the line of a token.
func (s *scenario) entry(token uint64) *callEntry {
	if token == 0 || token > uint64(len(s.calls)) {
		s.fail("a request has token %x, which was not made", token)
		return &callEntry{}
	}
	return s.calls[token-1]
}

// audit reads the ledger when everything has ended.
func (s *scenario) audit() {
	for _, c := range s.calls {
		s.auditEntry(c)
		if c.canceled {
			s.cancels++
		}
	}
	for i := range s.watched {
		s.checkRetired(i)
	}
	if s.Planted && s.cancels > 0 && s.reach[reachFinalize] > 0 {
		s.fail("the planted mistake")
	}
}

func (s *scenario) auditEntry(c *callEntry) {
	if c.ran > 1 {
		s.broken.Twice++
		s.fail("%s %x ran %d times", c.kind, c.token, c.ran)
	}
	if c.callbacks > 1 {
		s.broken.Doubled++
		s.fail("%s %x had %d callbacks", c.kind, c.token, c.callbacks)
	}
	switch {
	case c.refused:
		if c.callbacks+c.ran > 0 {
			s.fail("%s %x was refused, had %d callbacks and ran %d times", c.kind, c.token, c.callbacks, c.ran)
		}
		return
	case c.by.crashed:
		return
	case c.callbacks == 0:
		s.broken.Lost++
		s.fail("%s %x had no callback", c.kind, c.token)
		return
	case c.kind == "withdraw":
		s.auditWithdraw(c)
		return
	case c.kind == "response":
		s.auditResponse(c)
		return
	}
	s.outcomes[outcomeOf(c.err)]++
	if outcomeOf(c.err) == "canceled" && !c.canceled && !c.withdrawn {
		s.fail("%s %x ended with %v, and was not canceled", c.kind, c.token, c.err)
	}
	if c.kind != "call" {
		return
	}
	switch {
	case c.err == nil && !c.oneWay && c.ran != 1:
		s.fail("call %x succeeded and ran %d times", c.token, c.ran)
	case c.err == nil && !c.oneWay && !c.isAnswered():
		s.fail("call %x succeeded, and no response to it has left", c.token)
	case noResponse(c.err) && c.isAnswered() && !c.response.by.crashed:
		s.fail("call %x ended with %v, and response %x to it has left", c.token, c.err, c.response.token)
	case c.err != nil && hg.FateOf(c.err) == na.NotRun && c.ran != 0:
		s.fail("call %x did not run according to %q, and ran", c.token, c.err)
	case c.err != nil && hg.FateOf(c.err) == na.Ran && c.ran != 1:
		s.fail("call %x ran according to %q, and did not", c.token, c.err)
	}
}

// auditWithdraw: a withdrawn call never ran; an indeterminate one ended with an error.
func (s *scenario) auditWithdraw(c *callEntry) {
	s.outcomes[c.result.String()]++
	of := c.of
	switch c.result {
	case hg.Withdrawn:
		if of.ran != 0 || !errors.Is(of.err, hg.ErrCanceled) || hg.FateOf(of.err) != na.NotRun {
			s.fail("call %x was withdrawn, ran %d times and ended with %v", of.token, of.ran, of.err)
		}
	case hg.TooLate:
		if of.oneWay && of.err == nil && of.ran == 0 && !c.over && !s.mayLose() {
			s.fail("call %x was too late to be withdrawn, and did not run", of.token)
		}
	case hg.Indeterminate:
		if of.err == nil && !of.oneWay {
			s.fail("the outcome of call %x is unknown, and it succeeded", of.token)
		}
	default:
		s.fail("withdraw of call %x gave %v", of.token, c.result)
	}
}

func outcomeOf(err error) string {
	var remote *hg.RemoteError
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &remote):
		return "remote"
	case errors.Is(err, hg.ErrTimeout):
		return "timeout"
	case errors.Is(err, hg.ErrCanceled):
		return "canceled"
	case errors.Is(err, hg.ErrUnreachable):
		return "unreachable"
	case errors.Is(err, hg.ErrPeerLost):
		return "lost"
	case errors.Is(err, na.ErrRevoked):
		return "revoked"
	}
	return na.CodeOf(err).Error()
}

// fillRetired fills memory whose operation has ended; checkRetired checks that it does not change.
func (s *scenario) fillRetired(what string, b []byte) {
	if len(b) > 0 {
		copy(b, poisoned)
		s.watched = append(s.watched, retiredMemory{what, b})
	}
}

// checkRetired checks that retired memory was not written.
func (s *scenario) checkRetired(i int) {
	if m := &s.watched[i]; !bytes.Equal(m.b, poisoned[:len(m.b)]) {
		s.broken.Writes++
		s.fail("%s was written after its end", m.what)
	}
}
