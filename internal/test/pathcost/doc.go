// Package pathcost measures the costs of one call in functions, locks and allocations, and fails
// when they rise.
//
//	calls (a program) ── built plain ──────► allocations, stack frames, processor time
//	        │
//	        └─────────── built with -cover ─► how often each block of code ran in a call
//	                                             │
//	code.go: functions, locks, reads of the      │
//	clock and system calls, by file and line ────┴──► rates.go ──► table.go ── compared with testdata/table.txt
//
// What runs in proportion to the calls is of the path; what polls or ticks is not, and the least of
// several rounds is taken. So the figures do not depend on how fast or how busy the machine is.
package pathcost
