// Package within tells whether the calling goroutine is inside a callback.
//
//	user ─► Trigger ─► callback ─► Shutdown ─► within.Trigger() == true
package within

import (
	"runtime"
	"slices"
	"strings"
)

// Trigger reports whether a Trigger method of this module is on the caller's stack. It walks the stack: for rare calls only.
func Trigger() bool { return inside(".(*Context).Trigger") }

// Callback reports whether the caller runs inside a callback or a handler: in Trigger, or in Run of a dispatched request. It
// is as slow.
func Callback() bool { return inside(".(*Context).Trigger", "/hg.Incoming.Run") }

// inside reports whether a function of this module whose name ends in one of names is on the stack.
func inside(names ...string) bool {
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
