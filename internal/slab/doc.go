// Package slab is a pool of buffers for large bodies:
//
//	Get ─► a buffer of a size class, with undefined contents ─► Put
//
// A body that will be overwritten needs no cleared memory. Memory from the runtime is cleared and
// has no pages yet, which costs more than the copies of a body of 300 KiB; a buffer that was used a
// moment ago has its pages. A buffer that has been idle for one to two seconds is released to the
// system, so a burst does not keep its memory. Buffers in use are not tracked: one that is never
// Put is collected by the garbage collector.
package slab
