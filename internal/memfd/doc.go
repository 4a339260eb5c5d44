// Package memfd creates shared memory that one process writes and others map read-only. It is
// available only on Linux.
package memfd
