package pool

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"
)

// A Place says where the claim of shared memory is.
type Place struct {
	Chunk uint32 // its number in the owner's process
	Claim uint16 // 0: there is none
}

// A table is the front of a chunk: a header and claims, each of claimSize bytes. The owner writes it.
const (
	tableSize = 16 << 10
	claimSize = 32
	Claims    = tableSize/claimSize - 1 // in a chunk; they are numbered from 1

	claimCheck  = 0 // not 0: the claim holds
	claimOffset = 8 // in the chunk
	claimLength = 16

	headGone = 0 // not 0: the owner has given the chunk back
)

func word(b []byte, at int) *uint64 { return (*uint64)(unsafe.Pointer(&b[at : at+8][0])) }

// check is what a claim shows of a token: half of it, which says nothing about the other half.
func check(token *[16]byte) uint64 { return binary.LittleEndian.Uint64(token[8:]) }

// Look returns where in a chunk of a peer, which is mapped, the memory of a claim is; ok is false if the claim does not hold. What
// stands there is the peer's, and may change.
func Look(chunk []byte, claim uint16, token *[16]byte) (at, n int, ok bool) {
	if claim < 1 || claim > Claims || len(chunk) < tableSize || check(token) == 0 {
		return 0, 0, false
	}
	c := int(claim) * claimSize
	if atomic.LoadUint64(word(chunk, c+claimCheck)) != check(token) {
		return 0, 0, false
	}
	off, length := atomic.LoadUint64(word(chunk, c+claimOffset)), atomic.LoadUint64(word(chunk, c+claimLength))
	if size := uint64(len(chunk)); off < tableSize || off > size || length > size-off {
		return 0, 0, false
	}
	return int(off), int(length), true
}

// fence is stored to by readers, so that what they read before is read before what they load then, on any processor.
var fence atomic.Uint32

// Holds reports whether a claim of which Look returned the memory still holds. What was read before may be used if it does.
func Holds(chunk []byte, claim uint16, token *[16]byte) bool {
	fence.Store(1)
	return atomic.LoadUint64(word(chunk, int(claim)*claimSize+claimCheck)) == check(token)
}

// Gone reports whether the owner has given a chunk back.
func Gone(chunk []byte) bool { return atomic.LoadUint64(word(chunk, headGone)) != 0 }
