package loglimit

import (
	"sync"
	"time"
)

// interval is the least time between two lines.
const interval = time.Second

// A Limiter lets one line a second through. The zero value is ready. Its methods may be called from
// any goroutine.
type Limiter struct {
	mu      sync.Mutex    // guards the fields below
	next    time.Duration // the time from which on the next line may be written
	skipped int64         // lines that were not written since the last one
}

// Allow reports whether a line may be written at the time now, and how many lines were not written
// since the last one.
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
