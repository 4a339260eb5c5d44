// Package slab keeps buffers of large bodies for the next one:
//
//	Get ─► a buffer of a size class, with whatever was in it ─► Put
//
// A body that is to be written over needs no cleared memory, and memory that was used a moment ago is there, while what the
// runtime gives is cleared and has no pages yet: for a body of 300 KiB that costs more than its copies. A buffer that has been idle
// for a second or two goes back to the system, so a burst does not keep its memory. The package knows nothing of what is in a
// buffer, and does not track those that are out: one that is never Put is lost to the others, and nothing else.
package slab
