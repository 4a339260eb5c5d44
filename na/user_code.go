package na

import (
	"math/bits"
	"reflect"
	"runtime"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/internal/loop"
)

// A userFrame is a function below which a context runs code of the program: callbacks, handlers and
// authorizers. Each context has a separate one, so a stack walk identifies the context whose
// callback a goroutine runs. Go has no cheaper way to mark a goroutine.
type userFrame = func(k loop.UserCode) int

// codeFrames are the frames by number. Each is a separate literal, because Inside distinguishes
// them by their entry addresses. All contexts for which none is free share the last one.
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

// freeFrames has the bits of the frames that no context has.
var (
	framesMu   sync.Mutex // guards freeFrames
	freeFrames = ^uint64(0) >> 1
)

// takeFrame returns a frame for one context, and its number for returnFrame.
func takeFrame() (userFrame, int) {
	framesMu.Lock()
	defer framesMu.Unlock()
	i := min(bits.TrailingZeros64(freeFrames), sharedFrame)
	freeFrames &^= 1 << i
	return codeFrames[i], i
}

// returnFrame ends the use of the frame with the number i.
func returnFrame(i int) {
	if i == sharedFrame {
		return
	}
	framesMu.Lock()
	defer framesMu.Unlock()
	freeFrames |= 1 << i
}

// UserFrame returns the frame of c, a function that calls k.Run: the layer above calls it, while it
// holds c, to run code of the program outside Trigger. Meanwhile Inside reports true.
func (c upper) UserFrame() func(k loop.UserCode) int { return c.frame }

// Inside reports whether the calling goroutine is in code of the program that c runs, in Trigger or
// by UserCode. It walks the stack, so it is for rare calls. Contexts of one process beyond the
// first 63 share a frame: Inside does not distinguish them.
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
			if f, more = frames.Next(); f.Func != nil && f.Func.Entry() == entry { // nil: inlined
				return true
			}
		}
	}
}
