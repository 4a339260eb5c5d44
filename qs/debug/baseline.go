package debug

import "time"

// The thresholds of a method that counts as slower than usual.
const (
	medianFactor    = 2                // the least factor for the median
	tailFactor      = 4                // the least factor for the 99th percentile
	minSlowdown     = time.Millisecond // the least difference for both
	minCalls        = 20               // the calls that a median needs
	minTailCalls    = 100              // the calls that a 99th percentile needs
	minBaseline     = time.Minute      // the least time that a baseline covers
	generationSlots = 30               // the slots of ten seconds of a generation
	maxSlowTime     = time.Hour        // the times of a slow method become the usual ones after it

	// the newest slots: they are compared with a baseline, and are not in it
	recentSlots = int64(minuteSlots)
)

// A baseline holds the usual times of a method: those of five to ten minutes before the last minute
// in which the method was not slower than usual. So it keeps the times from before a method became
// slow, until the method has been slow for an hour.
//
//	slot of ten seconds ── a minute later ──► generation ── 30 slots later ──► generation before ──► forgotten
//	                └─ dropped if its minute was slow
type baseline struct {
	generations [2]generation // the newest first
	slowSince   time.Duration // when the method became slow, by the clock of the page; 0 while it is not
	firstSlot   int64         // slots before this number are not added
}

// A generation is a part of a baseline.
type generation struct {
	slotTotals
	covers int64 // slots that it covers
}

// window returns the times of b.
func (b *baseline) window() Window {
	var all slotTotals
	slots := int64(0)
	for i := range b.generations {
		all.merge(&b.generations[i].slotTotals)
		slots += b.generations[i].covers
	}
	return all.windowOver(time.Duration(slots) * slotTime)
}

// add adds a slot, which may be nil for one in which nothing ended, for n slots.
func (b *baseline) add(slot *methodSlot, n int64) {
	if b.generations[0].covers >= generationSlots {
		b.generations[1], b.generations[0] = b.generations[0], generation{}
	}
	g := &b.generations[0]
	if g.covers += n; slot != nil {
		g.add(slot)
	}
}

// advanceLocked moves the slots that have become older than a minute to the baseline, before the
// slot of now begins.
func (m *methodCounter) advanceLocked(now time.Duration) {
	last, next := m.slots.last, int64(now/slotTime)
	for n := last + 1; n <= min(next, last+recentSlots); n++ {
		m.judgeSlotLocked(n)
	}
	if left := next - last - recentSlots; left > 0 {
		m.baseline.add(nil, left)
	}
}

// judgeSlotLocked adds the slot that is older than a minute at the beginning of slot n to the
// baseline, unless the method was slow.
func (m *methodCounter) judgeSlotLocked(n int64) {
	var minute slotTotals
	for k := max(n-recentSlots, 0); k < n; k++ {
		if slot := m.slots.slotNumber(k); slot != nil {
			minute.add(slot)
		}
	}
	b, at := &m.baseline, time.Duration(n)*slotTime
	switch _, slow := compareToUsual(minute.windowOver(0), b.window()); {
	case !slow:
		b.slowSince = 0
	case b.slowSince == 0:
		b.slowSince = at
	case at-b.slowSince >= maxSlowTime:
		*b = baseline{firstSlot: n}
	}
	if b.slowSince != 0 {
		b.firstSlot = n
	}
	if old := n - recentSlots; old >= b.firstSlot {
		b.add(m.slots.slotNumber(old), 1)
	}
}

// isBaseline reports whether w, of a baseline, has enough calls and time to be compared with.
func (w Window) isBaseline() bool { return w.Count >= minCalls && w.Covers >= minBaseline }

// A slowness holds how much slower than usual a method is.
type slowness struct {
	median, tail change // of the median, and of the 99th percentile
}

// A change holds how much longer a time is than usual.
type change struct {
	factor float64       // the time divided by the usual one
	added  time.Duration // the time less the usual one
}

// compareToUsual reports whether the median of now, or its 99th percentile, is slower than usual.
// The 99th percentile of few calls is that of the slowest one, and does not count.
func compareToUsual(now, usual Window) (s slowness, is bool) {
	if now.Count < minCalls || !usual.isBaseline() {
		return s, false
	}
	s.median = changeOf(now.P50, usual.P50)
	if now.Count >= minTailCalls {
		s.tail = changeOf(now.P99, usual.P99)
	}
	return s, s.isMedianSlow() || s.isTailSlow()
}

// isMedianSlow reports whether half of the calls are slower than usual.
func (s slowness) isMedianSlow() bool { return s.median.isAtLeast(medianFactor) }

// isTailSlow reports whether the slowest calls are slower than usual.
func (s slowness) isTailSlow() bool { return s.tail.isAtLeast(tailFactor) }

// isExplainedBy reports whether others are slow in the same way as s is: a median that is slow is
// explained by no 99th percentile.
func (s slowness) isExplainedBy(others slowness) bool {
	return (!s.isMedianSlow() || s.median.isExplainedBy(others.median)) && (!s.isTailSlow() || s.tail.isExplainedBy(others.tail))
}

// changeOf returns how much longer now is than usual.
func changeOf(now, usual time.Duration) change {
	return change{factor: float64(now) / float64(max(usual, 1)), added: now - usual}
}

// isExplainedBy reports whether c is less than twice as much as others.
func (c change) isExplainedBy(others change) bool {
	return c.factor < 2*others.factor || c.added < 2*others.added
}

// raiseTo sets the measures of c to those of o where these are larger.
func (c *change) raiseTo(o change) {
	c.factor, c.added = max(c.factor, o.factor), max(c.added, o.added)
}

// isAtLeast reports whether c is at least the factor, and not a negligible time.
func (c change) isAtLeast(times float64) bool { return c.factor >= times && c.added >= minSlowdown }
