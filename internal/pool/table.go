package pool

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"
)

// A Place identifies a claim.
type Place struct {
	Chunk uint32 // ID of the chunk in the owner's process
	Claim uint16 // number within the chunk; 0 means no claim
}

// The table at the beginning of a chunk consists of a header followed by claims, each of claimSize
// bytes. Only the owner writes to it.
const (
	tableSize = 16 << 10
	claimSize = 32
	Claims    = tableSize/claimSize - 1 // number of claims in a chunk; they are numbered starting at 1

	// The offsets of the words in a claim.
	claimCheck  = 0 // nonzero if the claim is valid
	claimOffset = 8 // offset of the memory in the chunk
	claimLength = 16

	// headerReleased is the offset of the word that becomes nonzero when the owner releases the
	// chunk.
	headerReleased = 0
)

// word returns a pointer to the word of b at offset at.
func word(b []byte, at int) *uint64 { return (*uint64)(unsafe.Pointer(&b[at : at+8][0])) }

// checkOf returns the check of a token. It is half of the token's bytes, which reveal nothing about
// the other half.
func checkOf(token *[16]byte) uint64 { return binary.LittleEndian.Uint64(token[8:]) }

// FindClaim returns the offset and length of a claim's memory in a mapped chunk of a peer. ok is
// false if the claim is invalid. The peer may change that memory at any time.
func FindClaim(chunk []byte, claim uint16, token *[16]byte) (at, n int, ok bool) {
	if claim < 1 || claim > Claims || len(chunk) < tableSize || checkOf(token) == 0 {
		return 0, 0, false
	}
	c := int(claim) * claimSize
	if atomic.LoadUint64(word(chunk, c+claimCheck)) != checkOf(token) {
		return 0, 0, false
	}
	off, length := atomic.LoadUint64(word(chunk, c+claimOffset)), atomic.LoadUint64(word(chunk, c+claimLength))
	if size := uint64(len(chunk)); off < tableSize || off > size || length > size-off {
		return 0, 0, false
	}
	return int(off), int(length), true
}

// fence is a dummy variable. On every processor architecture, a store to it orders a reader's
// earlier reads before its next load.
var fence atomic.Uint32

// IsClaimValid reports whether a claim found by FindClaim is still valid. If it is, bytes that were
// read from its memory before the call may be used.
func IsClaimValid(chunk []byte, claim uint16, token *[16]byte) bool {
	fence.Store(1)
	return atomic.LoadUint64(word(chunk, int(claim)*claimSize+claimCheck)) == checkOf(token)
}

// IsReleased reports whether the owner has released the chunk.
func IsReleased(chunk []byte) bool { return atomic.LoadUint64(word(chunk, headerReleased)) != 0 }
