// Package memfault copies and reads memory that may not be there.
//
//	a file is mapped ─► somebody truncates it ─► the pages behind its new end are gone
//	                                               a system call that touches one    EFAULT
//	                                               Go code that touches one          SIGBUS: the process dies
//	                                               Go code in this package           false
//
// Whoever copies memory of a user that peers may reach, or that a transfer uses, copies it with Copy; whoever computes over
// a mapped file does that in Read. Either costs a few nanoseconds more than without. A fault in user code stays what it is.
package memfault
