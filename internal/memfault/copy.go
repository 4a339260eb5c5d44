package memfault

import (
	"errors"
	"runtime/debug"

	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
)

// Copy copies src to dst as the built-in copy does. ok is false if src could not be read or dst
// could not be written; the contents of dst are undefined then.
func Copy(dst, src []byte) (n int, ok bool) {
	defer recoverFault(debug.SetPanicOnFault(true))
	return copy(dst, src), true
}

// Gather is Copy from several slices, one after the other, until dst is full.
func Gather(dst []byte, src [][]byte) (n int, ok bool) {
	defer recoverFault(debug.SetPanicOnFault(true))
	for _, s := range src {
		n += copy(dst[n:], s)
	}
	return n, true
}

// Scatter is Copy to several slices, one after the other, until src is used up.
func Scatter(dst [][]byte, src []byte) (n int, ok bool) {
	defer recoverFault(debug.SetPanicOnFault(true))
	for _, d := range dst {
		n += copy(d, src[n:])
	}
	return n, true
}

// GatherAgain is Gather for a retransmission. The peer may have received the bytes already, so the program may own
// the memory again and write to it: the peer drops the copy in that case. The race detector would report that write,
// so this function is hidden from it.
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

// Read calls f with b. ok is false if f could not read b; f was interrupted in the middle then.
func Read(b []byte, f func(b []byte)) (ok bool) {
	defer recoverFault(debug.SetPanicOnFault(true))
	f(b)
	return true
}

// Readable reports whether all bytes of b can be read now.
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

// pageSize is the smallest page size of the supported systems.
const pageSize = 4 << 10

// sink keeps the compiler from removing the reads of Readable.
//
//go:noinline
func sink(byte) {}

// ErrFault is the error of Off: memory could not be read or written.
var ErrFault = errors.New("memory fault")

// On and Off make a function return with ErrFault where it touches memory without pages. Its other
// results keep the values that they had at that moment:
//
//	func look(b []byte) (ok bool, err error) {
//		defer memfault.Off(memfault.On(), &err)
func On() (before bool) { return debug.SetPanicOnFault(true) }

// Off restores the setting from before On, and sets err to ErrFault if there was a fault. It must
// be deferred.
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

// recoverFault restores the setting from before SetPanicOnFault and recovers from a fault; the
// interrupted function returns its zero results. Other panics continue. It must be deferred.
func recoverFault(before bool) {
	debug.SetPanicOnFault(before)
	switch r := recover().(type) {
	// the panic of a fault has the address; see debug.SetPanicOnFault
	case nil, interface{ Addr() uintptr }:
	default:
		panic(r)
	}
}
