package slab

import (
	"math/bits"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
)

const (
	// Least and Max are the sizes in bytes of the smallest and largest size class. They are
	// slightly more than 64 KiB and 64 MiB, so that a payload whose size is a power of two fits
	// together with its header.
	Least = 65 << 10
	Max   = Least << 10

	classes = 21
)

// freeLists holds the free buffers of each size class.
var freeLists [classes]freeList

// sizeClass returns the index and size of the smallest class that holds n bytes. The sizes are 65
// and 97.5 KiB, 130 and 195 KiB, and so on. For n greater than Least, the size is at most half
// again as large as n.
func sizeClass(n int) (class, size int) {
	if n <= Least {
		return 0, Least
	}
	up := bits.Len(uint((n - 1) / Least)) // number of doublings
	if size = Least << up; n <= size*3/4 {
		return 2*up - 1, size * 3 / 4
	}
	return 2 * up, size
}

// Size returns the size in bytes of the class for n bytes, or 0 if there is none.
func Size(n int) int {
	if n < 1 || n > Max {
		return 0
	}
	_, size := sizeClass(n)
	return size
}

// Get returns a buffer of length n with the capacity of its size class and undefined contents. A
// buffer of more than Max bytes is always newly allocated.
func Get(n int) []byte {
	if n > Max {
		return make([]byte, n)
	}
	if b := Spare(n); b != nil {
		return b
	}
	_, size := sizeClass(n)
	return make([]byte, n, size)
}

// Spare is like Get, but returns nil if there is no free buffer. It does not allocate.
func Spare(n int) []byte {
	if n > Max {
		return nil
	}
	class, _ := sizeClass(n)
	if b := freeLists[class].pop(); b != nil {
		return b[:n]
	}
	return nil
}

// Put returns b to the pool. b must start at the beginning of a buffer returned by Get and have its
// capacity; otherwise Put panics. The caller must not use b afterward. Put ignores nil and buffers
// of more than Max bytes.
func Put(b []byte) {
	if cap(b) == 0 || cap(b) > Max {
		return
	}
	b = b[:cap(b)]
	class, size := sizeClass(len(b))
	if size != len(b) {
		panic("slab: Put called with a buffer that is not from Get")
	}
	if raceflag.Enabled { // overwrite b to detect use after Put
		b[0] = 0xDB
		// With the race detector, copying ranges is a hundred times as fast as storing single
		// bytes.
		for n := 1; n < len(b); n *= 2 {
			copy(b[n:], b[:n])
		}
	}
	freeLists[class].push(b)
	if !sweepScheduled.Swap(true) {
		time.AfterFunc(idleTime, sweep)
	}
}
