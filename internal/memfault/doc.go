// Package memfault copies and reads memory that may have no pages behind it.
//
// If a file is truncated after it was mapped, accesses beyond its new end fail. A system call
// returns EFAULT, and Go code receives a SIGBUS, which kills the process. The functions of this
// package return false instead.
//
// User memory that peers may access, or that a transfer uses, is copied with Copy. Code that
// computes over a mapped file runs inside Read. Either costs a few nanoseconds. Faults in other
// code are unaffected.
package memfault
