package memfault

import (
	"errors"
	"runtime/debug"

	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
)

// Copy copies src to dst like the built-in copy. ok is false if src could not be read or dst could
// not be written. In that case the contents of dst are undefined.
func Copy(dst, src []byte) (n int, ok bool) {
	defer recoverFault(debug.SetPanicOnFault(true))
	return copy(dst, src), true
}

// Gather is like Copy, but copies from several slices in order until dst is full.
func Gather(dst []byte, src [][]byte) (n int, ok bool) {
	defer recoverFault(debug.SetPanicOnFault(true))
	for _, s := range src {
		n += copy(dst[n:], s)
	}
	return n, true
}

// Scatter is like Copy, but copies to several slices in order until src is exhausted.
func Scatter(dst [][]byte, src []byte) (n int, ok bool) {
	defer recoverFault(debug.SetPanicOnFault(true))
	for _, d := range dst {
		n += copy(d, src[n:])
	}
	return n, true
}

// GatherAgain is like Gather, for a retransmission. The peer may already have received the bytes,
// in which case the program may own the memory again and write to it, and the peer discards the
// copy. Because the race detector would report such a write, this function is hidden from it.
//
//go:norace
func GatherAgain(dst []byte, src [][]byte) (n int, ok bool) {
	if !raceflag.Enabled {
		return Gather(dst, src)
	}
	defer recoverFault(debug.SetPanicOnFault(true))
	for _, s := range src {
		for i := 0; i < len(s) && n < len(dst); i++ {
			dst[n] = s[i]
			n++
		}
	}
	return n, true
}

// Read calls f with b. ok is false if f could not read b and was therefore interrupted.
func Read(b []byte, f func(b []byte)) (ok bool) {
	defer recoverFault(debug.SetPanicOnFault(true))
	f(b)
	return true
}

// Readable reports whether all bytes of b can currently be read.
func Readable(b []byte) (ok bool) {
	defer recoverFault(debug.SetPanicOnFault(true))
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

// pageSize is the smallest page size of any supported system.
const pageSize = 4 << 10

// sink prevents the compiler from eliminating the reads in Readable.
//
//go:noinline
func sink(byte) {}

// ErrFault is the error set by Off if memory could not be read or written.
var ErrFault = errors.New("memory fault")

// On, together with Off, makes a function return ErrFault if it accesses memory without pages. The
// function's other results keep the values that they had at the time of the fault:
//
//	func look(b []byte) (ok bool, err error) {
//		defer memfault.Off(memfault.On(), &err)
func On() (before bool) { return debug.SetPanicOnFault(true) }

// Off restores the setting returned by On, and sets err to ErrFault if a fault occurred. It must be
// deferred.
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

// recoverFault restores the setting returned by SetPanicOnFault and recovers from a fault, in which
// case the interrupted function returns its zero results. It does not recover from other panics. It
// must be deferred.
func recoverFault(before bool) {
	debug.SetPanicOnFault(before)
	switch r := recover().(type) {
	// The panic value of a fault has a method Addr. See debug.SetPanicOnFault.
	case nil, interface{ Addr() uintptr }:
	default:
		panic(r)
	}
}
