package debug

import "time"

// Thresholds for considering a method slower than usual.
const (
	medianFactor    = 2                // minimum factor for the median
	tailFactor      = 4                // minimum factor for the 99th percentile
	minSlowdown     = time.Millisecond // minimum difference for both
	minCalls        = 20               // minimum number of calls for a median
	minTailCalls    = 100              // minimum number of calls for a 99th percentile
	minBaseline     = time.Minute      // minimum time covered by a baseline
	generationSlots = 30               // maximum number of slots in a generation
	maxSlowTime     = time.Hour        // time after which the times of a slow method become its usual ones

	// recentSlots is the number of newest slots that are compared with the baseline. They are not
	// yet part of it.
	recentSlots = int64(minuteSlots)
)

// A baseline holds the usual times of a method. They cover five to ten minutes, excluding the last
// minute and periods in which the method was slower than usual. When a method becomes slow, its
// baseline keeps the earlier times until the method has been slow for an hour.
//
// A slot is added to the newest generation when it is a minute old, unless the method was slow in
// that minute. Once a generation covers generationSlots slots, a new one begins. Only the newest
// two generations are kept.
type baseline struct {
	generations [2]generation // newest first
	slowSince   time.Duration // time at which the method became slow, on the page's clock; 0 if it is not slow
	firstSlot   int64         // number of the first slot that may be added to the baseline
}

// A generation is a part of a baseline and covers up to generationSlots slots.
type generation struct {
	slotTotals
	covers int64 // number of slots covered
}

// window returns the statistics of both generations together.
func (b *baseline) window() Window {
	var all slotTotals
	slots := int64(0)
	for i := range b.generations {
		all.merge(&b.generations[i].slotTotals)
		slots += b.generations[i].covers
	}
	return all.windowOver(time.Duration(slots) * slotTime)
}

// add adds n slots to the newest generation. slot holds their calls and is nil if there were none.
func (b *baseline) add(slot *methodSlot, n int64) {
	if b.generations[0].covers >= generationSlots {
		b.generations[1], b.generations[0] = b.generations[0], generation{}
	}
	g := &b.generations[0]
	if g.covers += n; slot != nil {
		g.add(slot)
	}
}

// advanceLocked adds the slots that are more than a minute old at the time now to the baseline. It
// must be called before the slot that contains now begins. The caller must hold m.mu.
func (m *methodCounter) advanceLocked(now time.Duration) {
	last, next := m.slots.last, int64(now/slotTime)
	for n := last + 1; n <= min(next, last+recentSlots); n++ {
		m.judgeSlotLocked(n)
	}
	if left := next - last - recentSlots; left > 0 {
		m.baseline.add(nil, left)
	}
}

// judgeSlotLocked adds the slot that becomes a minute old when slot n begins to the baseline,
// unless the method was slow in that minute. The caller must hold m.mu.
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

// isBaseline reports whether w, which must be the window of a baseline, has enough calls and covers
// enough time to be compared with.
func (w Window) isBaseline() bool { return w.Count >= minCalls && w.Covers >= minBaseline }

// A slowness describes how much longer than usual the calls of a method take.
type slowness struct {
	median, tail change // changes in the median and the 99th percentile
}

// A change describes how much longer than usual a duration is.
type change struct {
	factor float64       // duration divided by the usual duration
	added  time.Duration // duration minus the usual duration
}

// compareToUsual compares now with usual, and reports whether the median or the 99th percentile is
// slower than usual. It ignores the 99th percentile if now has few calls, because it would then be
// the time of the slowest call.
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

// isMedianSlow reports whether the median is considered slower than usual.
func (s slowness) isMedianSlow() bool { return s.median.isAtLeast(medianFactor) }

// isTailSlow reports whether the 99th percentile is considered slower than usual.
func (s slowness) isTailSlow() bool { return s.tail.isAtLeast(tailFactor) }

// isExplainedBy reports whether the slowness of others explains s. A slow 99th percentile does not
// explain a slow median.
func (s slowness) isExplainedBy(others slowness) bool {
	return (!s.isMedianSlow() || s.median.isExplainedBy(others.median)) && (!s.isTailSlow() || s.tail.isExplainedBy(others.tail))
}

// changeOf returns the change from usual to now.
func changeOf(now, usual time.Duration) change {
	return change{factor: float64(now) / float64(max(usual, 1)), added: now - usual}
}

// isExplainedBy reports whether the factor or the added time of c is less than twice that of
// others.
func (c change) isExplainedBy(others change) bool {
	return c.factor < 2*others.factor || c.added < 2*others.added
}

// raiseTo sets the factor and the added time of c to the maximum of their values in c and o.
func (c *change) raiseTo(o change) {
	c.factor, c.added = max(c.factor, o.factor), max(c.added, o.added)
}

// isAtLeast reports whether c.factor is at least times and c.added is at least minSlowdown.
func (c change) isAtLeast(times float64) bool { return c.factor >= times && c.added >= minSlowdown }
