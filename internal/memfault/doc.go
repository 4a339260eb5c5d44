// Package memfault copies and reads memory that may have no pages behind it.
//
//	a file is mapped ─► the file is truncated ─► accesses beyond its new end fail:
//	                                               in a system call          EFAULT
//	                                               in Go code                SIGBUS, which kills the process
//	                                               in this package           the function returns false
//
// User memory that peers may access, or that a transfer uses, is copied with Copy. Code that
// computes over a mapped file runs inside Read. Either costs a few nanoseconds. Faults in other
// code are unaffected.
package memfault
