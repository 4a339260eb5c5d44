package loglimit

import (
	"sync"
	"time"
)

// every is how often a line is written at most.
const every = time.Second

// A Limiter lets one line a second through. The zero value is ready. Its methods may be called from any goroutine.
type Limiter struct {
	mu      sync.Mutex    // guards the fields below
	next    time.Duration // no line before
	skipped int64         // since the last line
}

// Allow reports whether a line may be written now, and how many were not since the last one.
func (l *Limiter) Allow(now time.Duration) (skipped int64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now < l.next {
		l.skipped++
		return 0, false
	}
	skipped, l.skipped, l.next = l.skipped, 0, now+every
	return skipped, true
}
