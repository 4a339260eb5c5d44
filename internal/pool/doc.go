// Package pool is memory of this process that its peers on this machine may map, so that they read it without a copy in between, and
// without help.
//
//	chunk, a sealed memfd   table: claim claim … │ pages: block, free, block …
//	                               │               ▲
//	                               └── check, ─────┘ offset, length
//
// Only this process writes a chunk, ever. A block is memory in it; a claim says that peers may read some of a block: whoever knows
// its check, a random number. A reader looks at the claim before it reads and again afterwards. If it is gone what was read does not
// count. So the owner takes memory back with one store, and waits for nobody.
//
// Elsewhere than on Linux blocks are ordinary memory, and there are no claims.
package pool
