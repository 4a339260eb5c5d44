package loglimit

import (
	"sync"
	"time"
)

// interval is the minimum time between two lines.
const interval = time.Second

// A Limiter allows one line per second. The zero value is ready to use. Its methods are safe for
// concurrent use.
type Limiter struct {
	mu      sync.Mutex    // guards the fields below
	next    time.Duration // time at which the next line may be written
	skipped int64         // number of lines suppressed since the last one
}

// Allow reports whether a line may be logged at time now, and the number of lines suppressed since
// the last one.
func (l *Limiter) Allow(now time.Duration) (skipped int64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now < l.next {
		l.skipped++
		return 0, false
	}
	skipped, l.skipped, l.next = l.skipped, 0, now+interval
	return skipped, true
}
