// Package ledger compares the outcomes that callers get with the runs of handlers.
//
//	Origin: callers ─ a random program over package qs ─► Target: handlers
//	            │ call, end, back                                  │ run, done
//	            ▼                                                  ▼
//	          Book ── a line in one write, in a file or memory outside of the process, so that a kill loses none ── Book
//	            └──────────────────────────────► Audit ◄───────────────────────────┘
//
// An origin opens a node, makes calls by several callers, closes the node, and opens the next:
// calls of all kinds, with deadlines, canceled, abandoned and withdrawn at random, hedged by hand
// and by Hedge, the first of several (First), at several peers at once (All), at an address that is
// picked in each way, repeated by Retry and by an interceptor of its own, with memory and streams
// lent. It judges what it can see: answers, errors, memory. The rest is the audit's: whether a call
// that is reported as not run ran, and the other way round; whether one ran more often than it
// may; whether each has an end.
//
// The tests run it in the simulator. "qs soak" runs it over real transports, with processes that
// are killed and stopped.
package ledger
