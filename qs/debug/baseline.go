package debug

import "time"

// When a method counts as slower than usual.
const (
	slowerBy     = 2                // times, the median, and
	tailSlowerBy = 4                // times, the 99th percentile,
	slowerLeast  = time.Millisecond // and by so much at least
	enoughCalls  = 20               // that a median says something
	tailCalls    = 100              // that a 99th percentile does
	usualLeast   = time.Minute      // that a baseline covers
	usualSlots   = 30               // of ten seconds, after which a baseline begins a new generation
	slowForgiven = time.Hour        // after which the times of a slow method are the usual ones

	recentSlots = int64(minuteSlots) // that are compared with a baseline, and are not in it
)

// A baseline is what is usual for a method: the times of five to ten minutes that came before the last one, and in which the method was not
// slower than usual. So it stays what it was before a method became slow, until the method has been slow for an hour.
//
//	slot of ten seconds ── a minute later ──► generation ── 30 slots later ──► generation before ──► forgotten
//	                └─ it is of a minute that was slow: dropped
type baseline struct {
	generations [2]generation // the newest first
	slowSince   time.Duration // when the method became slow, by the clock of the page; 0 while it is not
	dropped     int64         // slots before this number are not added
}

// A generation is a part of a baseline.
type generation struct {
	span
	slots int64 // how many it covers
}

// window returns the times of b.
func (b *baseline) window() Window {
	var all span
	slots := int64(0)
	for i := range b.generations {
		all.merge(&b.generations[i].span)
		slots += b.generations[i].slots
	}
	return all.window(time.Duration(slots) * slotTime)
}

// add adds a slot, which may be nil for one in which nothing ended, for n slots.
func (b *baseline) add(slot *methodSlot, n int64) {
	if b.generations[0].slots >= usualSlots {
		b.generations[1], b.generations[0] = b.generations[0], generation{}
	}
	g := &b.generations[0]
	if g.slots += n; slot != nil {
		g.add(slot)
	}
}

// advance moves what has become older than a minute to the baseline, before the slot of now begins. Locked.
func (m *methodCounter) advance(now time.Duration) {
	last, next := m.slots.last, int64(now/slotTime)
	for n := last + 1; n <= min(next, last+recentSlots); n++ {
		m.judge(n)
	}
	if left := next - last - recentSlots; left > 0 {
		m.usual.add(nil, left)
	}
}

// judge adds the slot that is older than a minute at the beginning of slot n, unless the method was slow. Locked.
func (m *methodCounter) judge(n int64) {
	var minute span
	for k := max(n-recentSlots, 0); k < n; k++ {
		if slot := m.slots.numbered(k); slot != nil {
			minute.add(slot)
		}
	}
	b, at := &m.usual, time.Duration(n)*slotTime
	switch _, slow := slower(minute.window(0), b.window()); {
	case !slow:
		b.slowSince = 0
	case b.slowSince == 0:
		b.slowSince = at
	case at-b.slowSince >= slowForgiven:
		*b = baseline{dropped: n}
	}
	if b.slowSince != 0 {
		b.dropped = n
	}
	if old := n - recentSlots; old >= b.dropped {
		b.add(m.slots.numbered(old), 1)
	}
}

// isEnough reports whether w, of a baseline, says what is usual.
func (w Window) isEnough() bool { return w.Count >= enoughCalls && w.Covers >= usualLeast }

// A slowness is how much slower than usual a method is.
type slowness struct {
	median, tail change // of the median, and of the 99th percentile
}

// A change is how much longer a time is than usual.
type change struct {
	times float64       // so many times,
	more  time.Duration // and by so much
}

// slower reports whether now is slower than what is usual: its median is, or its 99th percentile. That of few calls is the one that took the
// longest, and is no change.
func slower(now, usual Window) (s slowness, is bool) {
	if now.Count < enoughCalls || !usual.isEnough() {
		return s, false
	}
	s.median = compare(now.P50, usual.P50)
	if now.Count >= tailCalls {
		s.tail = compare(now.P99, usual.P99)
	}
	return s, s.half() || s.few()
}

// half reports whether half of the calls are slower than usual.
func (s slowness) half() bool { return s.median.isAtLeast(slowerBy) }

// few reports whether the slowest calls are slower than usual.
func (s slowness) few() bool { return s.tail.isAtLeast(tailSlowerBy) }

// isExplainedBy reports whether others are slow in the same way as s is: a median that is slow is explained by no 99th percentile.
func (s slowness) isExplainedBy(others slowness) bool {
	return (!s.half() || s.median.isExplainedBy(others.median)) && (!s.few() || s.tail.isExplainedBy(others.tail))
}

// compare returns how much longer now is than usual.
func compare(now, usual time.Duration) change {
	return change{times: float64(now) / float64(max(usual, 1)), more: now - usual}
}

// isExplainedBy reports whether c is not twice as much as what others have changed by.
func (c change) isExplainedBy(others change) bool {
	return c.times < 2*others.times || c.more < 2*others.more
}

// atLeast makes c what o is where that is more.
func (c *change) atLeast(o change) {
	c.times, c.more = max(c.times, o.times), max(c.more, o.more)
}

// isAtLeast reports whether c is so many times, and more than what does not matter.
func (c change) isAtLeast(times float64) bool { return c.times >= times && c.more >= slowerLeast }
