// Package soak is the load, the faults and the audit of "qs soak".
//
//	Run: slots ─ Forward ─► relay ─► Target, a process each: token into its log, answer or transfer
//	       ▲ callback ─► ledger          ▲ kill, stop, reset, stall
//	       └─ next                     chaos
//
// The audit compares the ledger with the logs: what ended how, and what ran how often.
package soak
