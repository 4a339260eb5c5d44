package mutant

import (
	"runtime"
	"strings"
	"sync"
)

// Gap opens a lock that is held for a moment: what happens where a lock is missing.
func Gap(mu *sync.Mutex) {
	mu.Unlock()
	for range 3 {
		runtime.Gosched()
	}
	mu.Lock()
}

// CalledBy tells whether a function whose name contains this is on the stack.
func CalledBy(name string) bool {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs)])
	for {
		f, more := frames.Next()
		if strings.Contains(f.Function, name) || !more {
			return more
		}
	}
}
