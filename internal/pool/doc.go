// Package pool allocates memory that peers on this machine can map, so that they read it without a
// copy in between and without help of this process.
//
//	chunk, a sealed memfd   table: claim claim … │ pages: block, free, block …
//	                               │               ▲
//	                               └── check, ─────┘ offset, length
//
// Only this process can write to a chunk. A block is an allocation in it. A claim allows peers that
// know its check, a random number, to read a part of a block. A reader loads the claim before it
// reads and again afterwards; if the claim has been removed, the reader discards what it has read.
// So the owner revokes access with one store and waits for no reader.
//
// On systems other than Linux blocks are ordinary memory and there are no claims.
package pool
