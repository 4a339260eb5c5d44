package ledger

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// choices goes through every sequence of decisions, depth first: a run follows path and extends it
// by zeroes; then the last decision that can be another one is.
//
//	run: 0 0 0 0 ─► next: 0 0 0 1 ─► … ─► 0 0 1 ─► … ─► 2 1 3 1 ─► none is left
type choices struct {
	path, of []int
	at       int
	on       bool
	most     int // decisions other than 0 in one path; 0: any number
}

func (c *choices) choose(n int) int {
	if !c.on {
		return 0
	}
	if c.at == len(c.path) {
		c.path, c.of = append(c.path, 0), append(c.of, n)
	}
	if c.of[c.at] != n {
		panic(fmt.Sprintf("decision %d is between %d, and was between %d before", c.at, n, c.of[c.at]))
	}
	c.at++
	return c.path[c.at-1]
}

// next prepares the next run, if there is one.
func (c *choices) next() bool {
	c.at, c.on = 0, false
	others := 0
	for _, v := range c.path {
		if v > 0 {
			others++
		}
	}
	for n := len(c.path) - 1; n >= 0; n-- {
		if c.path[n] > 0 {
			others--
		}
		if c.path[n]+1 < c.of[n] && (c.most == 0 || others < c.most) {
			c.path[n]++
			c.path, c.of = c.path[:n+1], c.of[:n+1]
			return true
		}
	}
	return false
}

// A pairCase is two nodes, one call, and one action on it at any moment.
type pairCase struct {
	call string // "small", "large", "pull", "push"
	deed string // "cancel", "withdraw", "abandon", "close", "free", "finalize", "crash", "crash origin"
	cold bool   // the two are not connected yet

	targetProgram
	w          *sim.World
	c          *choices
	at         *hg.Context // the target
	cls        *hg.Class   // of the origin
	hctx       *hg.Context
	h          *hg.Handle
	region     *bulk.Handle
	memory     []byte
	ends, runs int
	err        error
	asked      bool // a withdraw was begun
	reported   int
	result     hg.WithdrawResult
	freed      int // closes of the region that have completed
	freeing    int
	done, over bool
}

const duelMove = 3 * 4096

// run is one world.
func (d *pairCase) run(c *choices) error {
	d.w = sim.NewWorld(sim.Config{Seed: 1, Choose: c.choose})
	defer d.w.Close()
	d.c = c
	d.w.Go("target", d.runTarget)
	d.w.Go("origin", func() { d.runOrigin(c) })
	if err := d.w.Run(time.Minute); err != nil {
		d.fail("%v", err)
	}
	if d.deed != "crash" {
		d.targetProgram.audit()
	}
	return d.failed
}

func (d *pairCase) open(name string) (*hg.Class, *hg.Context) {
	return openNode(d.w.Plugin(), name, 256, d.work)
}

func (d *pairCase) runTarget() {
	var cls *hg.Class
	cls, d.at = d.open("target")
	for !d.over {
		_ = d.at.Progress(-1)
		d.at.Trigger(0)
	}
	if d.deed == "crash origin" {
		driveUntil(d.at, time.Second, func() bool { st := d.at.Stats(); return isIdle(&st) })
		d.c.on = false
		for what, err := range map[string]error{"a transfer": d.moveErr, "a response": d.answerErr} {
			if err != nil && !errors.Is(err, na.ErrPeerLost) && !errors.Is(err, na.ErrAnswered) {
				d.fail("%s ended with %v", what, err)
			}
		}
	}
	d.closeClass(cls, d.at)
}

func (d *pairCase) runOrigin(c *choices) {
	d.cls, d.hctx = d.open("origin")
	if !d.cold {
		h, err := d.hctx.Create(na.MakeAddr("sim://target", 0), hg.HashName("work"))
		if err != nil {
			panic(err)
		}
		warm := false
		if err := h.Forward([]byte{1}, func(*hg.Handle, error) { warm = true }); err != nil {
			panic(err)
		}
		for !warm {
			_ = d.hctx.Progress(-1)
			d.hctx.Trigger(0)
		}
		h.Close()
		driveUntil(d.hctx, time.Millisecond, nil)
		d.runs = 0
	}
	c.on = true
	on := "origin"
	if d.deed == "crash" || d.deed == "crash origin" {
		on = "chaos"
	}
	d.forward()
	d.w.Go(on, d.applyAction)
	for !d.done || d.ends == 0 && d.err == nil || d.asked && d.reported == 0 || d.freed < d.freeing {
		_ = d.hctx.Progress(-1)
		d.hctx.Trigger(0)
		if d.cls.NA().Closed() && d.done {
			break
		}
	}
	c.on = false
	d.audit()
	if d.region != nil && d.freeing == 0 {
		d.takeBackMemory()
	}
	if d.deed != "close" {
		d.h.Close()
	}
	d.closeClass(d.cls, d.hctx)
	d.over = true
	if d.at != nil {
		d.at.Wake()
	}
}

// forward makes the call.
func (d *pairCase) forward() {
	var in []byte
	switch d.call {
	case "small":
		in = make([]byte, 10)
	case "large":
		in = make([]byte, 1000)
	default:
		d.memory = bytes.Repeat([]byte{1}, duelMove)
		access := bulk.ReadOnly
		if d.call == "push" {
			access = bulk.WriteOnly
		}
		var err error
		if d.region, err = bulk.Create(d.hctx, bulk.Options{Access: access}, d.memory); err == nil {
			in, err = d.region.MarshalBinary()
		}
		if err != nil {
			panic(err)
		}
	}
	h, err := d.hctx.Create(na.MakeAddr("sim://target", 0), hg.HashName("work"))
	if err != nil {
		panic(err)
	}
	d.h = h
	if err := h.Forward(in, func(h *hg.Handle, err error) {
		d.ends++
		d.err = err
		if err != nil {
			return
		}
		if out, err := h.OutputRaw(); err != nil || len(out) != len(in) {
			d.fail("output of %d bytes, %v", len(out), err)
		}
		if d.call == "push" && d.freeing == 0 && !bytes.Equal(d.memory, bytes.Repeat([]byte{2}, duelMove)) {
			d.fail("memory differs after a push")
		}
	}); err != nil {
		d.fail("forward: %v", err)
	}
}

// applyAction applies the action of the duel, which may happen at any moment.
func (d *pairCase) applyAction() {
	defer func() {
		d.done = true
		d.hctx.Wake()
	}()
	switch d.deed {
	case "cancel":
		d.h.Cancel()
	case "abandon":
		d.h.Abandon()
	case "close":
		d.h.Close()
	case "withdraw":
		d.asked = true
		if err := d.h.Withdraw(0, func(_ *hg.Handle, r hg.WithdrawResult) {
			d.reported++
			d.result = r
		}); err != nil {
			d.fail("withdraw: %v", err)
		}
	case "free":
		d.takeBackMemory()
	case "finalize":
		_ = d.cls.Close()
	case "crash":
		d.w.Node("target").Crash()
	case "crash origin":
		d.w.Node("origin").Crash()
		if d.over = true; d.at != nil {
			d.at.Wake()
		}
	}
}

// takeBackMemory ends the loan of the memory. Peers must not write it then.
func (d *pairCase) takeBackMemory() {
	d.freeing++
	freed := func(error) {
		d.freed++
		copy(d.memory, poisoned)
	}
	switch err := d.region.CloseFunc(freed); {
	case err == nil:
	case d.hctx.NA().Closed() && na.CodeOf(err) == na.ErrClosed: // it is withdrawn nevertheless, without a notification
		freed(nil)
	default:
		d.fail("close of the region: %v", err)
	}
}

func (d *pairCase) work(h hg.Request) error {
	d.runs++
	in, err := h.InputRaw()
	if err != nil {
		return err
	}
	remote := new(bulk.Handle)
	if len(in) < 20 || len(in) == 1000 || remote.UnmarshalBinary(in) != nil {
		return d.answer(func(cb hg.RespondFunc) error { return h.RespondRaw(in, cb) })
	}
	return d.moveAndAnswer(h, remote, in)
}

// audit checks the call after its end.
func (d *pairCase) audit() {
	switch fate := hg.FateOf(d.err); {
	case d.ends != 1 || d.asked && d.reported != 1:
		d.fail("%d callbacks of the call, %d of the withdraw", d.ends, d.reported)
	case d.runs > 1, d.err == nil && d.runs != 1, d.err != nil && fate == na.NotRun && d.runs > 0, d.err != nil && fate == na.Ran && d.runs == 0:
		d.fail("the handler ran %d times, the call ended with %v", d.runs, d.err)
	case d.asked && d.result == hg.Withdrawn && (d.runs > 0 || !errors.Is(d.err, hg.ErrCanceled)):
		d.fail("it was withdrawn, ran %d times and ended with %v", d.runs, d.err)
	case d.asked && d.result != hg.Withdrawn && d.result != hg.TooLate:
		d.fail("the withdraw gave %v", d.result)
	case d.deed == "withdraw" && d.result == hg.TooLate && d.err != nil:
		d.fail("the withdraw was too late, and the call ended with %v", d.err)
	}
}

// closeClass closes a class, and checks that nothing is left and that no callback ran late.
func (d *pairCase) closeClass(cls *hg.Class, hctx *hg.Context) {
	endNode(cls, hctx, d.fail)
	if d.freed > 0 && !bytes.Equal(d.memory, poisoned[:len(d.memory)]) {
		d.fail("memory was written after it had been taken back")
	}
	if d.ends > 1 || d.runs > 1 || d.reported > 1 {
		d.fail("%d callbacks of the call, %d of the withdraw, %d runs", d.ends, d.reported, d.runs)
	}
}

// countEnds counts the end of a run: that of the call, or, where its origin crashed, the action of
// the target.
func (d *pairCase) countEnds(ends map[string]int) {
	if d.deed != "crash origin" {
		ends[outcomeOf(d.err)]++
		return
	}
	if d.runs > 0 && d.moves > 0 {
		ends["moved "+outcomeOf(d.moveErr)]++
	}
	if d.runs > 0 {
		ends["answered "+outcomeOf(d.answerErr)]++
	}
}

// mustEnd returns the outcomes that some orders must have: for a deed in time and too late.
func mustEnd(call, deed string) []string {
	switch deed {
	case "cancel", "withdraw", "abandon":
		return []string{"ok", "canceled"}
	case "free":
		return []string{"ok", "remote"}
	case "finalize":
		return []string{"ok", "closed"}
	case "crash":
		return []string{"ok", "lost"}
	case "crash origin":
		if call == "pull" || call == "push" {
			return []string{"moved ok", "moved lost", "answered ok", "answered lost"}
		}
		return []string{"answered ok", "answered lost"}
	}
	return []string{"ok"}
}

var deviations = flag.Int("sim.deviations", long.Or(1, 3), "how often TestEveryOrder leaves the usual order of larger scopes; 0: any number of times")

// TestEveryOrder searches every order of events of one small call between two nodes and one deed.
// For larger ones it searches the orders that deviate once from the usual one, in which the deed is
// last; in a long run, up to three times.
func TestEveryOrder(t *testing.T) {
	most, total := *deviations, 0
	for _, call := range []string{"small", "large", "pull", "push"} {
		for _, deed := range []string{"cancel", "withdraw", "abandon", "close", "free", "finalize", "crash", "crash origin"} {
			for _, cold := range []bool{false, true} {
				if deed == "free" && (call == "small" || call == "large") {
					continue
				}
				c := choices{most: most}
				if call == "small" {
					c.most = 0
				}
				n, longest := 0, 0
				ends := map[string]int{}
				for more := true; more; more = c.next() {
					d := pairCase{call: call, deed: deed, cold: cold}
					err := d.run(&c)
					require.NoError(t, err, "%s, %s, cold %v: order %v", call, deed, cold, c.path)
					n++
					longest = max(longest, len(c.path))
					d.countEnds(ends)
				}
				total += n
				for _, end := range mustEnd(call, deed) {
					if c.most == 1 || c.most == 2 {
						break // too few orders
					}
					require.Positive(t, ends[end], "%s, %s, cold %v: no order ended with %q: %v", call, deed, cold, end, ends)
				}
				t.Logf("%s, %s, cold %v: %d orders, up to %d decisions, %v", call, deed, cold, n, longest, ends)
			}
		}
	}
	t.Logf("%d orders", total)
	require.Greater(t, total, 1000)
}
