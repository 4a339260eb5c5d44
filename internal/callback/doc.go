// Package callback reports whether the calling goroutine is inside a callback.
//
//	user ─► Trigger ─► callback ─► Shutdown ─► callback.InTrigger() == true
package callback

import (
	"runtime"
	"slices"
	"strings"
)

// InTrigger reports whether a Trigger method of this module is on the caller's stack. It walks the stack: for rare calls only.
func InTrigger() bool { return onStack(".(*Context).Trigger") }

// Inside reports whether the caller runs inside a callback or a handler: in Trigger, or in Run of a dispatched request. It
// is as slow.
func Inside() bool { return onStack(".(*Context).Trigger", "/hg.Incoming.Run") }

// onStack reports whether a function of this module whose name ends in one of names is on the stack.
func onStack(names ...string) bool {
	ends := func(name string) bool {
		return slices.ContainsFunc(names, func(end string) bool { return strings.HasSuffix(name, end) })
	}
	pcs := make([]uintptr, 64)
	for skip := 3; ; skip += len(pcs) {
		n := runtime.Callers(skip, pcs)
		if n == 0 {
			return false
		}
		frames := runtime.CallersFrames(pcs[:n])
		for {
			f, more := frames.Next()
			if strings.Contains(f.Function, "/quicksilver/") && ends(f.Function) {
				return true
			}
			if !more {
				break
			}
		}
	}
}
