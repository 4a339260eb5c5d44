package callback

import (
	"math/bits"
	"reflect"
	"runtime"
	"sync"
)

const (
	base   = 16
	digits = 3
	most   = base * base * base // base to the power of digits
)

// A Mark stands for one that runs callbacks. At most 4095 are told apart at a time: those beyond are taken for one another.
type Mark struct {
	number int
	run    step
}

// shared is the number of those that are too many.
const shared = most - 1

var (
	mu   sync.Mutex // guards used
	used = [most / 64]uint64{most/64 - 1: 1 << 63}
)

// New returns a Mark. Free gives its number back.
func New() *Mark {
	m := &Mark{number: number(), run: func(fn func(int) int, n int) int { return fn(n) }}
	for d, rest := 0, m.number; d < digits; d, rest = d+1, rest/base {
		m.run = steps[rest%base](m.run)
	}
	return m
}

func number() int {
	mu.Lock()
	defer mu.Unlock()
	for i, word := range used {
		if bit := bits.TrailingZeros64(^word); bit < 64 {
			used[i] |= 1 << bit
			return 64*i + bit
		}
	}
	return shared
}

// Free gives m up.
func (m *Mark) Free() {
	if m.number != shared {
		mu.Lock()
		defer mu.Unlock()
		used[m.number/64] &^= 1 << (m.number % 64)
	}
}

// Run returns fn(n), and has Inside report true meanwhile.
func (m *Mark) Run(fn func(int) int, n int) int { return m.run(fn, n) }

// A step leaves one digit on the stack. Each entry of steps makes those of a function of its own.
type step func(fn func(int) int, n int) int

var steps = [base]func(next step) step{
	func(next step) step { return func(fn func(int) int, n int) int { return next(fn, n) } },
	func(next step) step { return func(fn func(int) int, n int) int { return next(fn, n) } },
	func(next step) step { return func(fn func(int) int, n int) int { return next(fn, n) } },
	func(next step) step { return func(fn func(int) int, n int) int { return next(fn, n) } },
	func(next step) step { return func(fn func(int) int, n int) int { return next(fn, n) } },
	func(next step) step { return func(fn func(int) int, n int) int { return next(fn, n) } },
	func(next step) step { return func(fn func(int) int, n int) int { return next(fn, n) } },
	func(next step) step { return func(fn func(int) int, n int) int { return next(fn, n) } },
	func(next step) step { return func(fn func(int) int, n int) int { return next(fn, n) } },
	func(next step) step { return func(fn func(int) int, n int) int { return next(fn, n) } },
	func(next step) step { return func(fn func(int) int, n int) int { return next(fn, n) } },
	func(next step) step { return func(fn func(int) int, n int) int { return next(fn, n) } },
	func(next step) step { return func(fn func(int) int, n int) int { return next(fn, n) } },
	func(next step) step { return func(fn func(int) int, n int) int { return next(fn, n) } },
	func(next step) step { return func(fn func(int) int, n int) int { return next(fn, n) } },
	func(next step) step { return func(fn func(int) int, n int) int { return next(fn, n) } },
}

// digitOf is the digit of a step, by its entry.
var digitOf = func() map[uintptr]int {
	all := map[uintptr]int{}
	for digit, newStep := range steps {
		all[reflect.ValueOf(newStep(nil)).Pointer()] = digit
	}
	return all
}()

// Inside reports whether the caller was called, however deep, by Run of m. It is for rare calls only.
func (m *Mark) Inside() bool {
	pcs := make([]uintptr, 64)
	found, number, place := 0, 0, 1
	for skip := 2; ; skip += len(pcs) {
		n := runtime.Callers(skip, pcs)
		if n == 0 {
			return false
		}
		frames := runtime.CallersFrames(pcs[:n])
		for more := true; more; {
			var f runtime.Frame
			if f, more = frames.Next(); f.Func == nil { // inlined
				continue
			}
			digit, ok := digitOf[f.Func.Entry()]
			if !ok {
				continue
			}
			number += digit * place // the lowest comes first
			if found, place = found+1, place*base; found%digits != 0 {
				continue
			}
			if number == m.number {
				return true
			}
			number, place = 0, 1
		}
	}
}
