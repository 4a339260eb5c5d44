package debug

import (
	"math/bits"
	"time"
)

// Calls are counted in slots of ten seconds, by when they end. The last minute is the slot that has
// begun and six whole ones, the last ten minutes are that slot and sixty.
const (
	slotTime       = 10 * time.Second
	minuteSlots    = 1 + int(time.Minute/slotTime)
	tenMinuteSlots = 1 + int(10*time.Minute/slotTime)
)

// A slotRing holds a T for each of the newest slots.
type slotRing[T any] struct {
	slots []T
	last  int64 // the number of the newest slot since the page began
}

func newRing[T any](n int) slotRing[T] { return slotRing[T]{slots: make([]T, n)} }

// slotAt returns the slot of now. Those that have passed since the last call are empty.
func (r *slotRing[T]) slotAt(now time.Duration) *T {
	n := int64(now / slotTime)
	for k := max(r.last+1, n-int64(len(r.slots))+1); k <= n; k++ {
		var empty T
		r.slots[k%int64(len(r.slots))] = empty
	}
	r.last = max(r.last, n) // another goroutine may have read the clock later, and called slotAt first
	return &r.slots[r.last%int64(len(r.slots))]
}

// slotNumber returns the slot with the number n, or nil if it was overwritten, or has not begun.
func (r *slotRing[T]) slotNumber(n int64) *T {
	if n < 0 || n > r.last || n <= r.last-int64(len(r.slots)) {
		return nil
	}
	return &r.slots[n%int64(len(r.slots))]
}

// newestSlots returns the n newest slots, as of now, oldest first. They are there until the next
// call of at.
func (r *slotRing[T]) newestSlots(now time.Duration, n int) []*T {
	r.slotAt(now)
	all := make([]*T, 0, n)
	for k := max(r.last-int64(n)+1, 0); k <= r.last; k++ {
		all = append(all, &r.slots[k%int64(len(r.slots))])
	}
	return all
}

// coveredTime returns the time span of the n newest slots.
func coveredTime(now time.Duration, n int) time.Duration {
	return min(now, time.Duration(n-1)*slotTime+now%slotTime)
}

// A histogram counts durations: eight buckets for each doubling from 512 ns to 275 s, one for
// shorter durations, and one for longer ones. A quantile is right to an eighth between these.
type histogram [2 + 8*(maxDoubling-minDoubling)]uint32

const (
	minDoubling = 9
	maxDoubling = 38
)

// bucketOf returns the bucket of d: the position of its highest bit, and the three bits behind that.
func bucketOf(d time.Duration) int {
	n := uint64(max(d, 0))
	top := bits.Len64(n) - 1
	switch {
	case top < minDoubling:
		return 0
	case top >= maxDoubling:
		return len(histogram{}) - 1
	}
	return 1 + 8*(top-minDoubling) + int(n>>(top-3)&7)
}

// bucketLimit returns the longest duration of a bucket but the last, which has none.
func bucketLimit(bucket int) time.Duration {
	if bucket == 0 {
		return 1<<minDoubling - 1
	}
	top := (bucket-1)/8 + minDoubling
	return time.Duration(uint64(8+(bucket-1)%8+1)<<(top-3) - 1)
}

// add adds the counts of o, which may be nil.
func (h *histogram) add(o *histogram) {
	if o != nil {
		for i, n := range o {
			h[i] += n
		}
	}
}

// quantile returns a duration that a share q did not exceed, of which the longest took most; 0 of none.
func (h *histogram) quantile(q float64, most time.Duration) time.Duration {
	total := uint64(0)
	for _, n := range h {
		total += uint64(n)
	}
	left := uint64(q*float64(total) + 0.5)
	for i, n := range h[:len(h)-1] {
		if n > 0 && left <= uint64(n) {
			return min(bucketLimit(i), most)
		}
		left -= min(uint64(n), left)
	}
	return most
}
