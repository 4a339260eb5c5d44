// Package ring passes messages between two processes through memory that one of them writes and the
// other reads.
//
//	segment of A, written by A                        segment of B, written by B
//	┌ words ──────────────────────────┐               ┌ words ─────────────┐
//	│ taken: messages that A has read │ ── B reads ─► │ …                  │
//	│ bell, waits: when to wake A     │               │                    │
//	├ 2 rings of descriptors ─────────┤               │                    │
//	│ commit │ op tag credit │ 96 B   │ ── B polls ─► │                    │
//	├ bodies of up to an envelope ────┤               └────────────────────┘
//	└─────────────────────────────────┘
//	area of A, created when first needed: 64 slots for bulk data and for messages longer than an
//	envelope, and 16 MiB for bodies to which messages refer
//
// A slot becomes free when the message in it has been taken. The first free slot is always used, so
// that few slots are in use and those stay in the CPU caches.
//
// Each byte has exactly one writer. There are therefore no locks, and a process that dies leaves
// nothing to repair. A descriptor is published by a single store to its commit word, which is at a
// fixed offset that no body ever overlaps. A message that was not published before its writer died
// does not exist.
//
// The peer's memory is not trusted. It is read once into private memory, validated, and only then
// used. Each side computes the positions of bodies in the ring of bodies independently.
//
// The package makes no system calls, starts no goroutines and takes no locks. It works on any byte
// slice; tests run it on heap memory, where the race detector observes it. The send lock named in
// the documentation of methods is a lock provided by the caller. The receiving goroutine is the one
// goroutine that calls Take.
package ring
