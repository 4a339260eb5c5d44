package debug

import (
	"math/bits"
	"time"
)

// times counts durations in buckets, eight for each doubling: a quantile is right to an eighth.
type times [8 * 64]uint64

func (t *times) add(d time.Duration) { t[bucketOf(d)]++ }

// bucketOf returns the bucket of d: the position of its highest bit, and the three bits behind that.
func bucketOf(d time.Duration) int {
	n := uint64(max(d, 0))
	if n < 8 {
		return int(n)
	}
	top := bits.Len64(n) - 1
	return 8*(top-2) + int(n>>(top-3)&7)
}

// longest returns the longest duration of a bucket.
func longest(bucket int) time.Duration {
	if bucket < 8 {
		return time.Duration(bucket)
	}
	top := bucket/8 + 2
	return time.Duration(uint64(8+bucket%8+1)<<(top-3) - 1)
}

// quantile returns a duration that a share q of those of m did not exceed; 0 of none.
func (m *Method) quantile(q float64) time.Duration {
	total := uint64(0)
	for _, n := range m.times {
		total += n
	}
	left := uint64(q*float64(total) + 0.5)
	for i, n := range m.times {
		if n > 0 && left <= n {
			return min(longest(i), m.Most)
		}
		left -= min(n, left)
	}
	return m.Most
}
