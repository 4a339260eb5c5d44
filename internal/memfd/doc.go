// Package memfd makes shared memory that one process writes and others map read-only. Linux only.
package memfd
