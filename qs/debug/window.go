package debug

import (
	"math/bits"
	"time"
)

// Calls are counted in slots of ten seconds, according to the time at which they complete. The last
// minute consists of the current slot and the six slots before it. The last ten minutes consist of
// the current slot and the sixty slots before it.
const (
	slotTime       = 10 * time.Second
	minuteSlots    = 1 + int(time.Minute/slotTime)
	tenMinuteSlots = 1 + int(10*time.Minute/slotTime)
)

// A slotRing is a ring buffer that holds a value of type T for each of the newest slots.
type slotRing[T any] struct {
	slots []T
	last  int64 // number of the newest slot; slot 0 begins when the page does
}

func newRing[T any](n int) slotRing[T] { return slotRing[T]{slots: make([]T, n)} }

// slotAt returns the slot for the time now. It clears slots that were skipped since the previous
// call.
func (r *slotRing[T]) slotAt(now time.Duration) *T {
	n := int64(now / slotTime)
	for k := max(r.last+1, n-int64(len(r.slots))+1); k <= n; k++ {
		var empty T
		r.slots[k%int64(len(r.slots))] = empty
	}
	r.last = max(r.last, n) // another goroutine may already have passed a later time
	return &r.slots[r.last%int64(len(r.slots))]
}

// slotNumber returns slot number n, or nil if it has been overwritten or has not begun.
func (r *slotRing[T]) slotNumber(n int64) *T {
	if n < 0 || n > r.last || n <= r.last-int64(len(r.slots)) {
		return nil
	}
	return &r.slots[n%int64(len(r.slots))]
}

// newestSlots returns the n newest slots at the time now, oldest first. They are valid until the
// next call to slotAt.
func (r *slotRing[T]) newestSlots(now time.Duration, n int) []*T {
	r.slotAt(now)
	all := make([]*T, 0, n)
	for k := max(r.last-int64(n)+1, 0); k <= r.last; k++ {
		all = append(all, &r.slots[k%int64(len(r.slots))])
	}
	return all
}

// coveredTime returns the length of the period that the n newest slots cover at the time now.
func coveredTime(now time.Duration, n int) time.Duration {
	return min(now, time.Duration(n-1)*slotTime+now%slotTime)
}

// A histogram counts durations. It has eight buckets for each doubling from 512 ns to 275 s, one
// for shorter durations, and one for longer durations. Within that range, the relative error of a
// quantile is at most 1/8.
type histogram [2 + 8*(maxDoubling-minDoubling)]uint32

const (
	minDoubling = 9
	maxDoubling = 38
)

// bucketOf returns the index of the bucket for d, which is determined by the position of its
// highest bit and the three bits that follow it.
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

// bucketLimit returns the upper limit of the durations in a bucket. It must not be called for the
// last bucket, which has no limit.
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

// quantile returns the q-quantile of the durations. most is the longest duration, and must be 0 if
// there are none.
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
