// Package soak implements the processes and the faults of "qs soak". The calls and the audit are in
// package ledger.
//
//	Run: origin 0, here ─┐                       ┌─► Target, a process each ─► book
//	     Origin, a       ├─ relay (tcp), calls ──┤
//	     process each ───┘ ─► book               └─► …
//	        ▲ kill, stop, end                        ▲ kill, stop, end, reset, stall
//	        └────────────────── chaos ───────────────┘
//
// Books are logs in files, so they survive a kill. The audit reads them after all processes have
// exited.
package soak
