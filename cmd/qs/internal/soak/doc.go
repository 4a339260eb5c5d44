// Package soak has the processes and the faults of "qs soak". The calls and the audit are in package ledger.
//
//	Run: origin 0, here ─┐                       ┌─► Target, a process each ─► book
//	     Origin, a       ├─ relay (tcp), calls ──┤
//	     process each ───┘ ─► book               └─► …
//	        ▲ kill, stop, end                        ▲ kill, stop, end, reset, stall
//	        └────────────────── chaos ───────────────┘
//
// Books are files, which a kill leaves as they are. The audit reads them when everything has ended.
package soak
