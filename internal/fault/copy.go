package fault

import "runtime/debug"

// Copy is copy that reports false when src could not be read or dst not be written. What dst holds is undefined then.
func Copy(dst, src []byte) (n int, ok bool) {
	defer caught(debug.SetPanicOnFault(true))
	return copy(dst, src), true
}

// Read calls f, and reports false when f could not read b. What f has done is undefined then.
func Read(b []byte, f func(b []byte)) (ok bool) {
	defer caught(debug.SetPanicOnFault(true))
	f(b)
	return true
}

// Readable tells whether all of b can be read now.
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

// caught ends a fault; the interrupted function returns zeroes. Other panics go on.
func caught(before bool) {
	debug.SetPanicOnFault(before)
	switch r := recover().(type) {
	case nil, interface{ Addr() uintptr }: // what the runtime throws then
	default:
		panic(r)
	}
}
