package slab

import (
	"math/bits"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
)

const (
	// Least and Max are the sizes of the smallest and of the largest class in bytes: a little more than 64 KiB and 64 MiB, so that a
	// payload of a round size has its header in the same class.
	Least = 65 << 10
	Max   = Least << 10

	classes = 21
)

// shelves has what nobody uses, by class.
var shelves [classes]shelf

// class returns the number of the smallest class that holds n bytes, and its size: 65 and 97.5 KiB, 130 and 195 KiB, and so on. A
// buffer is a third larger than need be at the most.
func class(n int) (class, size int) {
	if n <= Least {
		return 0, Least
	}
	up := bits.Len(uint((n - 1) / Least)) // doublings
	if size = Least << up; n <= size*3/4 {
		return 2*up - 1, size * 3 / 4
	}
	return 2 * up, size
}

// Size returns the size in bytes of the class for n bytes; 0 when there is none.
func Size(n int) int {
	if n < 1 || n > Max {
		return 0
	}
	_, size := class(n)
	return size
}

// Get returns a buffer of n bytes, whose capacity is that of its class. There may be anything in it. One of more than Max bytes is made
// anew.
func Get(n int) []byte {
	if n > Max {
		return make([]byte, n)
	}
	if b := Spare(n); b != nil {
		return b
	}
	_, size := class(n)
	return make([]byte, n, size)
}

// Spare is Get if that needs no new memory, and returns nil else.
func Spare(n int) []byte {
	if n > Max {
		return nil
	}
	class, _ := class(n)
	if b := shelves[class].take(); b != nil {
		return b[:n]
	}
	return nil
}

// Put takes back what Get has given, all of it: b begins where that did, and has its capacity. Nobody uses it any more. Nil, and what
// is larger than Max, is nothing.
func Put(b []byte) {
	if cap(b) == 0 || cap(b) > Max {
		return
	}
	b = b[:cap(b)]
	class, size := class(len(b))
	if size != len(b) {
		panic("slab: Put of what Get has not given")
	}
	if raceflag.Enabled { // who reads it after this shall notice
		b[0] = 0xDB
		for n := 1; n < len(b); n *= 2 { // the detector takes a range a hundred times as fast as its bytes
			copy(b[n:], b[:n])
		}
	}
	shelves[class].put(b)
	if !looking.Swap(true) {
		time.AfterFunc(pause, look)
	}
}
