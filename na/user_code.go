package na

import (
	"math/bits"
	"reflect"
	"runtime"
	"sync"
)

// A userFrame is a function below which a context runs code of the program: callbacks, handlers and authorizers. Each context has one of
// its own, so a walk of the stack finds whose code the calling goroutine is in; a goroutine has no other name that costs nothing to set.
type userFrame func(k userCode) int

// userCode is what a context runs below its frame: run(max), or what is queued.
type userCode struct {
	c         *Context
	run       func(int) int // nil: Context.runTasks
	max, step int
	stop      Stopper
}

func (k userCode) do() int {
	if k.run != nil {
		return k.run(k.max)
	}
	return k.c.runTasks(k.max, k.step, k.stop)
}

// codeFrames are the frames, by their number. A literal each: their entries tell them apart. The last is shared by all contexts for which
// no other is free.
var codeFrames = [frameCount]userFrame{
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
	func(k userCode) int { return k.do() },
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

// returnFrame ends the use of a frame.
func returnFrame(i int) {
	if i == sharedFrame {
		return
	}
	framesMu.Lock()
	defer framesMu.Unlock()
	freeFrames |= 1 << i
}

// UserCode returns run(n), which runs code of the program that the layer above runs outside Trigger: meanwhile Inside reports true.
func (c upper) UserCode(run func(int) int, n int) int { return c.frame(userCode{run: run, max: n}) }

// Inside reports whether the caller was called by code of the program that c runs, in Trigger or by UserCode. It walks the stack: it is
// for rare calls. Contexts of one process beyond the first 63 are taken for one another.
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
