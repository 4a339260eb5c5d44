package planted

import (
	"os"
	"runtime"
	"strings"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/internal/test/mutant"
)

var on = os.Getenv(mutant.Env)

func init() {
	if on != "" && mutant.Named(on) == nil {
		panic("mutant: " + mutant.Env + " is " + on + ", which names no mutant")
	}
}

// Is reports whether the bug of that name is on.
func Is(name string) bool { return on == name }

// Blind reports whether the tables of internal/fsmcheck are left alone.
func Blind() bool { return os.Getenv(mutant.EnvBlind) != "" }

// Gap unlocks a lock for a moment, as if it were missing there.
func Gap(mu *sync.Mutex) {
	mu.Unlock()
	for range 3 {
		runtime.Gosched()
	}
	mu.Lock()
}

// CalledBy reports whether a function whose name contains this is on the stack.
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
