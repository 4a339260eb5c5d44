package memfault

import (
	"errors"
	"runtime/debug"

	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
)

// Copy is copy that reports false when src could not be read or dst not be written. What dst holds is undefined then.
func Copy(dst, src []byte) (n int, ok bool) {
	defer caught(debug.SetPanicOnFault(true))
	return copy(dst, src), true
}

// Gather is Copy of what src holds, one after the other, as far as there is room.
func Gather(dst []byte, src [][]byte) (n int, ok bool) {
	defer caught(debug.SetPanicOnFault(true))
	for _, s := range src {
		n += copy(dst[n:], s)
	}
	return n, true
}

// Scatter is Copy to what dst holds, one after the other, as far as there are bytes.
func Scatter(dst [][]byte, src []byte) (n int, ok bool) {
	defer caught(debug.SetPanicOnFault(true))
	for _, d := range dst {
		n += copy(d, src[n:])
	}
	return n, true
}

// GatherAgain is Gather of bytes that were sent before. The peer may have them, and their owner may write there by now: then what is
// copied is dropped when it arrives. The race detector, which cannot know that, is not told.
//
//go:norace
func GatherAgain(dst []byte, src [][]byte) (n int, ok bool) {
	if !raceflag.Enabled {
		return Gather(dst, src)
	}
	defer caught(debug.SetPanicOnFault(true))
	for _, s := range src {
		for i := 0; i < len(s) && n < len(dst); i++ {
			dst[n] = s[i]
			n++
		}
	}
	return n, true
}

// Read calls f, and reports false when f could not read b. What f has done is undefined then.
func Read(b []byte, f func(b []byte)) (ok bool) {
	defer caught(debug.SetPanicOnFault(true))
	f(b)
	return true
}

// Readable reports whether all of b can be read now.
func Readable(b []byte) (ok bool) {
	defer caught(debug.SetPanicOnFault(true))
	var sum byte
	for at := 0; at < len(b); at += pageSize {
		sum += b[at]
	}
	if len(b) > 0 {
		sum += b[len(b)-1]
	}
	sink(sum)
	return true
}

// pageSize is that of the systems with the smallest pages.
const pageSize = 4 << 10

// sink keeps the reads of Readable.
//
//go:noinline
func sink(byte) {}

// ErrFault says that memory could not be read or written.
var ErrFault = errors.New("memory fault")

// On and Off have a whole function end with an error where it touches memory that is not there; its results are then what they were:
//
//	func look(b []byte) (ok bool, err error) {
//		defer memfault.Off(memfault.On(), &err)
//
// What the function has done until then is done.
func On() (before bool) { return debug.SetPanicOnFault(true) }

// Off ends what On began, and sets err if there was a fault.
func Off(before bool, err *error) {
	debug.SetPanicOnFault(before)
	switch r := recover().(type) {
	case nil:
	case interface{ Addr() uintptr }:
		*err = ErrFault
	default:
		panic(r)
	}
}

// caught ends a fault; the interrupted function returns zeroes. Other panics go on.
func caught(before bool) {
	debug.SetPanicOnFault(before)
	switch r := recover().(type) {
	case nil, interface{ Addr() uintptr }: // what the runtime throws then
	default:
		panic(r)
	}
}
