package na

import (
	"math/bits"
	"reflect"
	"runtime"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/internal/loop"
)

// A userFrame is a function through which a context calls user code, that is, callbacks, handlers,
// and authorizers. Each context uses a different function, so that the stack of a goroutine shows
// for which context it is running user code. Go has no cheaper way to mark a goroutine.
type userFrame = func(k loop.UserCode) int

// codeFrames holds the frames by number. Each is a separate literal, because Inside distinguishes
// them by their entry addresses. Contexts that find no free frame share the last one.
var codeFrames = [frameCount]userFrame{
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
	func(k loop.UserCode) int { return k.Run(k) },
}

const (
	frameCount  = 64
	sharedFrame = frameCount - 1
)

// freeFrames has a bit set for each frame that is not in use.
var (
	framesMu   sync.Mutex // guards freeFrames
	freeFrames = ^uint64(0) >> 1
)

// takeFrame allocates a userFrame for one context. The caller must pass the frame's number, which
// is the second result, to returnFrame when the context is closed.
func takeFrame() (userFrame, int) {
	framesMu.Lock()
	defer framesMu.Unlock()
	i := min(bits.TrailingZeros64(freeFrames), sharedFrame)
	freeFrames &^= 1 << i
	return codeFrames[i], i
}

// returnFrame makes the frame with number i available to other contexts.
func returnFrame(i int) {
	if i == sharedFrame {
		return
	}
	framesMu.Lock()
	defer framesMu.Unlock()
	freeFrames |= 1 << i
}

// UserFrame returns a function that calls k.Run in such a way that Inside reports true during the
// call. The higher layer uses it to run user code outside Trigger. It must have called Hold before.
func (c upper) UserFrame() func(k loop.UserCode) int { return c.frame }

// Inside reports whether the calling goroutine is running user code for c, through Trigger or
// UserFrame. It is slow, because it walks the stack. A process can distinguish the first 63
// contexts. Inside may report true for any context beyond those if the goroutine is running user
// code for another one of them.
func (c upper) Inside() bool {
	entry := reflect.ValueOf(c.frame).Pointer()
	pcs := make([]uintptr, 64)
	for skip := 2; ; skip += len(pcs) {
		n := runtime.Callers(skip, pcs)
		if n == 0 {
			return false
		}
		frames := runtime.CallersFrames(pcs[:n])
		for more := true; more; {
			var f runtime.Frame
			if f, more = frames.Next(); f.Func != nil && f.Func.Entry() == entry { // nil if inlined
				return true
			}
		}
	}
}
