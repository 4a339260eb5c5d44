// Package ring moves messages between two processes through memory that one of them writes and the
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
//	area of A, made when it is first needed: 64 slots for bulk data and for messages longer than an
//	envelope, and 16 MiB for bodies that messages are about
//
// A slot is free when the message in it has been taken. The first free slot is used, so that few
// are in use and stay in the caches.
//
// Each byte has one writer, always: there are no locks, and a process that dies leaves nothing to
// be repaired. A descriptor is published by one store of its commit word, which is at a fixed
// offset that no body ever covers. A message that was not published when the writer died does not
// exist.
//
// The peer's memory is not trusted: it is read once into private memory, checked, and then used.
// Each side computes by itself where a body in the ring of bodies is.
//
// The package makes no system calls, starts no goroutines and takes no locks. It works on any
// bytes: tests run it on the heap, where the race detector sees it. "Under the lock" in a comment
// means the caller's lock for sending; "by the receiver" means the one goroutine that receives.
package ring
