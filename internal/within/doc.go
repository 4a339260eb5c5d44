// Package within tells whether the calling goroutine is inside a callback.
//
//	user ─► Trigger ─► callback ─► Shutdown ─► within.Trigger() == true
package within

import (
	"runtime"
	"strings"
)

// Trigger tells whether a Trigger method of this module is on the caller's stack: whether the caller runs inside a
// callback or a handler. It walks the stack: for rare calls only.
func Trigger() bool {
	pcs := make([]uintptr, 64)
	for skip := 2; ; skip += len(pcs) {
		n := runtime.Callers(skip, pcs)
		if n == 0 {
			return false
		}
		frames := runtime.CallersFrames(pcs[:n])
		for {
			f, more := frames.Next()
			if strings.Contains(f.Function, "/quicksilver/") && strings.HasSuffix(f.Function, ".(*Context).Trigger") {
				return true
			}
			if !more {
				break
			}
		}
	}
}
