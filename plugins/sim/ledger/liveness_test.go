package ledger

import (
	"bytes"
	"encoding/binary"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// serveUntilSettled serves until all work of all nodes has ended, which it must within 30 s of
// calm, and shows then that all of them reach each other.
func (a *actor) serveUntilSettled() {
	s := a.s
	if !a.driveUntil("all work has ended", func() bool {
		for _, b := range s.nodes {
			if b.open > 0 || b.callers > 0 || b.regions > 0 || len(b.kept) > 0 || b.ops < s.quota || b.closing {
				return false
			}
		}
		return s.calmed > 0
	}) {
		return
	}
	a.callEveryNode()
	a.waitForAll("all have greeted")
	a.closeAll()
	end := s.w.Now() + 10*time.Second
	for _, c := range a.hctxs {
		a.waitUntilEmpty(c, end)
	}
	a.waitForAll("all are empty")
	a.leaveUnanswered()
	a.waitForAll("all part")
}

// waitForAll waits until every node has reached this point.
func (a *actor) waitForAll(where string) {
	s := a.s
	if s.failed != nil || a.closing {
		return
	}
	s.came[where]++
	a.driveUntil(where, func() bool { return s.came[where] >= len(s.nodes) })
}

// leaveUnanswered leaves a call without an answer: one side or the other closes.
func (a *actor) leaveUnanswered() {
	s := a.s
	s.parting = true
	if c := a.callUncanceled(a.anyContext(), "never", s.names[(a.i+1)%len(s.names)]); c != nil {
		a.driveUntil("the last call runs", func() bool { return c.ran > 0 || c.callbacks > 0 })
	}
}

// driveUntil serves until done returns true, for 30 s of calm at most.
func (a *actor) driveUntil(what string, done func() bool) bool {
	s := a.s
	for end := time.Duration(0); !done(); a.serve() {
		switch {
		case s.failed != nil, a.closing:
			return false
		case s.calmed == 0:
			continue
		case end == 0:
			end = s.w.Now() + 30*time.Second
		case s.w.Now() > end:
			for _, c := range s.calls {
				if c.callbacks == 0 && !c.by.crashed && !c.refused {
					s.broken.Lost++
					s.fail("%s %x of node %s has not ended 30 s after calm", c.kind, c.token, s.names[c.by.i])
				}
			}
			s.fail("node %s: not 30 s after calm: %s", s.names[a.i], what)
		}
		if !s.parting {
			a.answerAll()
		}
	}
	return true
}

// serve drives the whole node once.
func (a *actor) serve() {
	a.runGiven(len(a.given))
	for _, c := range a.hctxs {
		c.Trigger(0)
		begun := a.s.w.Now()
		_ = c.Progress(time.Millisecond)
		waited := a.s.w.Now() > begun
		if c.Trigger(0); waited {
			a.checkOverdue(c, begun)
		}
	}
}

// callEveryNode calls every node. A session that was lost unnoticed, or a dial before the calm that
// failed, may cost one try.
func (a *actor) callEveryNode() {
	s := a.s
	hctx, left := a.anyContext(), s.names
	for try := 1; len(left) > 0; try++ {
		calls := make([]*callEntry, len(left))
		for i, name := range left {
			if calls[i] = a.callUncanceled(hctx, "echo", name); calls[i] == nil {
				return
			}
		}
		if !a.driveUntil("greetings have ended", func() bool {
			for _, c := range calls {
				if c.callbacks == 0 {
					return false
				}
			}
			return true
		}) {
			return
		}
		var again []string
		for i, c := range calls {
			switch {
			case c.err == nil:
			case try == 2, !s.mayLose() && !s.mayDelayDials():
				s.fail("node %s does not reach %s after calm: try %d ended with %v", s.names[a.i], left[i], try, c.err)
			default:
				again = append(again, left[i])
			}
		}
		for end := s.w.Now() + time.Second; len(again) > 0 && s.w.Now() < end; { // a name that could not be dialled is left alone for a while
			a.serve()
		}
		left = again
	}
}

// callUncanceled makes a small call that is not canceled.
func (a *actor) callUncanceled(hctx *hg.Context, rpc, name string) *callEntry {
	s := a.s
	h, err := hctx.Create(na.MakeAddr("sim://"+name, 0), hg.HashName(rpc))
	if err != nil {
		s.fail("create: %v", err)
		return nil
	}
	defer h.Close()
	c := a.beginCall("call")
	in := append(binary.LittleEndian.AppendUint64(nil, c.token), tokenPattern(c.token, 16)...)
	if err := h.SetMeta(s.metaOf(c.token)); err != nil {
		s.fail("metadata of call %x: %v", c.token, err)
	}
	if err := h.Forward(in, func(h *hg.Handle, err error) {
		c.handleEnd(err)
		if out, bad := h.OutputRaw(); err == nil && (bad != nil || !bytes.Equal(out, in)) {
			s.fail("call %x: got %x, %v, want %x", c.token, out, bad, in)
		}
	}); err != nil {
		s.fail("a call to %s after calm: %v", name, err)
		return nil
	}
	return c
}

// mayLose reports whether something has happened that a peer may be lost of.
func (s *scenario) mayLose() bool {
	st := s.w.Stats()
	return st.Resets+st.Corrupted+st.Clogs+st.Pauses+st.Partitions+st.Crashes+st.Lost > 0 || s.reach[reachFinalize] > 0 || s.NoAssist || s.parting
}

// mayDelayDials reports whether a dial that began before the calm may have failed: it was refused, or its post failed. The next dial to
// the same name follows after a pause.
func (s *scenario) mayDelayDials() bool { return s.Faults.Refuse > 0 || s.Faults.Again > 0 }

// checkOverdue searches for calls that were overdue at begun, after which hctx has polled (a
// Progress that finds something to trigger does not) and has run all callbacks. It may find each
// such call once.
func (a *actor) checkOverdue(hctx *hg.Context, begun time.Duration) {
	kept := a.timed[:0]
	for _, c := range a.timed {
		if c.callbacks > 0 {
			continue
		}
		kept = append(kept, c)
		if c.deadline < begun && c.handle.h.HG() == hctx {
			if c.overdue++; c.overdue > 1 {
				a.s.fail("call %x has not ended at %v, its deadline was %v", c.token, a.s.w.Now(), c.deadline)
			}
		}
	}
	clear(a.timed[len(kept):])
	a.timed = kept
}
