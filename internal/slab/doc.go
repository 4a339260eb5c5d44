// Package slab implements a pool of buffers for large bodies:
//
//	Get ─► a buffer of a size class, with undefined contents ─► Put
//
// A body that will be overwritten does not need cleared memory. Memory from the runtime is cleared
// and has no pages yet, which costs more than the copies of a 300 KiB body; a recently used buffer
// already has its pages. A buffer that has been idle for one to two seconds is released to the
// system, so that a burst does not retain its memory. Buffers in use are not tracked. The garbage
// collector frees those that are never passed to Put.
package slab
