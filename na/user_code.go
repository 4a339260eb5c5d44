package na

import (
	"math/bits"
	"reflect"
	"runtime"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/internal/loop"
)

// A userFrame is a function through which a context runs user code: callbacks, handlers, and
// authorizers. Each context has a different one, so that a stack walk can identify the context
// whose callback a goroutine is running. Go has no cheaper way to mark a goroutine.
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

// takeFrame returns a frame for one context and its number, to be passed to returnFrame.
func takeFrame() (userFrame, int) {
	framesMu.Lock()
	defer framesMu.Unlock()
	i := min(bits.TrailingZeros64(freeFrames), sharedFrame)
	freeFrames &^= 1 << i
	return codeFrames[i], i
}

// returnFrame releases the frame with number i.
func returnFrame(i int) {
	if i == sharedFrame {
		return
	}
	framesMu.Lock()
	defer framesMu.Unlock()
	freeFrames |= 1 << i
}

// UserFrame returns the frame of c, a function that calls k.Run. The higher layer calls it, while
// it holds c, to run user code outside Trigger. During such a call, Inside reports true.
func (c upper) UserFrame() func(k loop.UserCode) int { return c.frame }

// Inside reports whether the calling goroutine is running user code for c, through Trigger or
// UserFrame. It walks the stack, so it should not be called often. Contexts of a process beyond the
// first 63 share a frame, and Inside does not distinguish between them.
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
