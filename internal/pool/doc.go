// Package pool allocates memory that peers on this machine can map, so that they can read it
// without an intermediate copy and without the help of this process.
//
//	chunk, a sealed memfd   table: claim claim … │ pages: block, free, block …
//	                               │               ▲
//	                               └── check, ─────┘ offset, length
//
// Only this process can write to a chunk. A block is an allocation within a chunk. A claim allows
// peers that know its check, a random number, to read part of a block. A reader loads the claim
// before it reads and again afterward. If the claim has been removed, the reader discards the
// bytes. The owner can therefore revoke access with a single store, without waiting for readers.
//
// On systems other than Linux, blocks are ordinary memory and there are no claims.
package pool
