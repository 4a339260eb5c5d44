package ledger

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// finish waits for the end of all calls of all nodes, and shows then that nothing was lost: every
// handle can be used, and every envelope.
func (a *racer) finish() {
	s := a.s
	if !a.driveUntil("all calls have ended", func() bool {
		if !s.calmed {
			return false
		}
		for _, b := range s.racers {
			if b.open > 0 || len(b.kept) > 0 || b.isWorking() {
				return false
			}
		}
		return true
	}, a.serve) {
		return
	}
	a.waitForAll("work", a.serve)
	a.useHandles()
	a.waitForAll("handles", a.serve)
	a.waitUntilSettled()
	a.waitForAll("settled", a.serve)
	a.useEnvelopes()
	a.waitForAll("envelopes", a.serve)
	for _, en := range a.entries {
		if en.h != nil {
			en.h.Close()
		}
	}
	a.waitUntilSettled()
	a.waitForAll("end", a.serve)
	a.close()
}

// isWorking reports whether a's program is still in its first part.
func (a *racer) isWorking() bool { return a.cls == nil || a.s.isWorking() }

// patience is how long anything may take once the world is calm: a peer that is lost is noticed
// within PeerTimeout.
func (a *racer) patience() time.Duration { return 30*time.Second + 30*a.s.opts.span }

// driveUntil runs turn until done returns true.
func (a *racer) driveUntil(what string, done func() bool, turn func(time.Duration)) bool {
	s := a.s
	pause, end := time.Microsecond, time.Duration(0)
	for !done() {
		if s.calmed && end == 0 {
			end = s.w.Now() + a.patience()
		}
		if end > 0 && s.w.Now() > end {
			s.fail("node %s: not in time: %s; %+v", s.names[a.i], what, a.hctx.Stats())
		}
		if s.failed != nil {
			return false
		}
		pause = min(pause*2, 2*time.Millisecond)
		turn(pause)
	}
	return true
}

// serve is a turn that runs everything.
func (a *racer) serve(d time.Duration) {
	given := a.given
	a.given, a.holding = nil, false
	for _, r := range given {
		_ = r.Run() // unless it was taken back
	}
	a.hctx.Trigger(0)
	a.runDue()
	_ = a.hctx.Progress(d)
}

// progressOnly calls Progress and runs no handler.
func (a *racer) progressOnly(d time.Duration) {
	a.holding = true
	a.hctx.Trigger(0)
	_ = a.hctx.Progress(0)
	a.s.w.Sleep(d)
}

// waitForAll waits until every node has reached this point.
func (a *racer) waitForAll(where string, turn func(time.Duration)) {
	a.s.came[where]++
	a.driveUntil("everybody is at "+where, func() bool { return a.s.came[where] >= len(a.s.names) }, turn)
}

// useHandles calls once with every handle, and every node once.
func (a *racer) useHandles() {
	for _, en := range a.entries {
		en.todo = [4]plannedAction{}
		a.callOnceOrTwice(en, a.rng.IntN(len(a.s.names)))
	}
	for to := range a.s.names {
		a.callOnceOrTwice(a.entries[0], to)
	}
}

// callOnceOrTwice makes a call that succeeds. A session that was lost unnoticed may cost a try.
func (a *racer) callOnceOrTwice(en *entry, to int) {
	s := a.s
	tries := 1
	if !s.opts.isClean() {
		tries = 4
	}
	for try := range tries {
		if try > 0 {
			end := s.w.Now() + time.Second // of the pause after a dial that failed; others may be dialling us
			a.driveUntil("the pause is over", func() bool { return s.w.Now() >= end }, a.serve)
		}
		if !a.call(en, "now", to) {
			return
		}
		c := en.call
		if !a.driveUntil("a call of a used handle", func() bool { return c.callbacks > 0 }, a.serve) || c.err == nil {
			return
		}
		if try == tries-1 {
			s.fail("node %s: a used handle does not work: %v", s.names[a.i], c.err)
		}
	}
}

// useEnvelopes has every node send every node one request more than it guarantees. All but one must
// arrive, to each, and the last must wait: no credit was lost, none was given twice. They are taken
// back then.
func (a *racer) useEnvelopes() {
	s := a.s
	if s.cfg.NoAssist {
		return // Progress moves nothing as long as a handler waits for Trigger
	}
	var all []*entry
	var calls []*raceCall
	guaranteed := func(stats na.Stats) bool {
		return stats.Queued == len(s.names) && stats.Envelopes == len(s.names)*s.ger[a.i]
	}
	for to := range s.names {
		for range s.ger[to] + 1 {
			en := &entry{}
			if !a.call(en, "later", to) {
				return
			}
			all, calls = append(all, en), append(calls, en.call)
		}
	}
	if !a.driveUntil("every envelope is in use", func() bool { return guaranteed(a.hctx.Stats().NA) }, a.progressOnly) {
		return
	}
	a.waitForAll("in use", a.progressOnly)
	for range 20 {
		a.progressOnly(50 * time.Microsecond)
	}
	if st := a.hctx.Stats().NA; !guaranteed(st) {
		s.fail("node %s: %d requests wait for an envelope, %d are in one", s.names[a.i], st.Queued, st.Envelopes)
	}
	a.waitForAll("full", a.progressOnly)
	for _, en := range all {
		a.withdraw(en, 0)
	}
	stats := func() na.Stats { return a.hctx.Stats().NA }
	if !a.driveUntil("no envelope is in use", func() bool { return stats().Envelopes == 0 && stats().Outstanding == 0 }, a.progressOnly) {
		return
	}
	a.waitForAll("empty", a.progressOnly)
	a.hctx.Trigger(0)
	for i, en := range all {
		if c := calls[i]; c.callbacks != 1 || c.asks[0].reported != 1 || c.asks[0].r != hg.Withdrawn {
			s.fail("call %d waited for a handler or an envelope and was not withdrawn: %+v", c.token, c.asks)
		}
		en.h.Close()
	}
}

// waitUntilSettled waits until nothing is in flight at this node, and checks the memory that is
// reserved for peers.
func (a *racer) waitUntilSettled() {
	s := a.s
	var st hg.Stats
	handles := 0
	for _, en := range a.entries {
		if en.h != nil && s.came["envelopes"] == 0 {
			handles++
		}
	}
	each := int64(s.ger[a.i]+na.ExpeditedEnvelopes) * int64(a.hctx.NA().Limits().MaxUnexpected+64) // and the overhead of an envelope
	a.driveUntil("nothing is under way", func() bool {
		st = a.hctx.Stats()
		n := &st.NA
		room := int64(0)
		for _, p := range a.hctx.NA().Peers() {
			room += p.Room
		}
		return n.Envelopes+n.Queued+n.Outstanding+n.Leases+st.Queued == 0 && n.Regions+st.Lent+st.Pulled+st.Active+st.Waiting == 0 &&
			int(st.Handles) == handles && n.Reserved <= int64(n.Peers)*each+room // a dial without an answer keeps some for a while
	}, a.serve)
	if n := &st.NA; n.Violations != 0 && s.opts.faults.Corrupt == 0 {
		s.fail("node %s: %d violations", s.names[a.i], n.Violations)
	}
}

func (a *racer) close() {
	s := a.s
	st := a.hctx.Stats().NA
	s.far += st.Withdrawn
	s.late += st.LateDropped
	s.stalls += st.Stalls
	_ = a.cls.Close()
	if a.driveUntil("the class is closed", a.cls.NA().Closed, a.serve) {
		if st := a.hctx.Stats().NA; st.Reserved != 0 {
			s.fail("node %s: %d bytes are reserved at the end", s.names[a.i], st.Reserved)
		}
	}
}
