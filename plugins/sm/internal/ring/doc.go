// Package ring moves messages between two processes through memory that one of them writes and the other reads.
//
//	segment of A, written by A                        segment of B, written by B
//	┌ words ──────────────────────────┐               ┌ words ─────────────┐
//	│ taken: what A has read          │ ── B reads ─► │ …                  │
//	│ bell, waits: when to wake A     │               │                    │
//	├ 2 rings of descriptors ─────────┤               │                    │
//	│ commit │ op tag credit │ 96 B   │ ── B polls ─► │                    │
//	├ bodies of up to an envelope ────┤               └────────────────────┘
//	└─────────────────────────────────┘
//	area of A, made when it is first needed: 64 slots for bulk data and for messages longer than an
//	envelope, and 16 MiB for bodies that messages are about
//
// A slot is free when the message in it is taken; the first one that is free is used, so that few are, and these are in the caches.
//
// Each byte has one writer, for ever: nothing is locked, and the death of a process leaves nothing to be mended. A descriptor is
// published by one store of its commit word, which stands at a fixed place that no body ever covers. What was not published when
// the writer died does not exist.
//
// Nothing that the peer has written is believed: it is read once into private memory, checked, and then used. Where a body stands
// both sides work out for themselves.
//
// The package makes no system call, starts no goroutine and locks nothing. It works on any bytes: tests run it on the heap, where the
// race detector sees it.
package ring
