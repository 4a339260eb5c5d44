package mutant

import (
	"runtime"
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
