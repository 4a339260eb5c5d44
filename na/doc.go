// Package na is the network abstraction: operations on messages and memory that start now and end once. Their
// callbacks wait in a completion queue.
//
//	SendUnexpected, RecvUnexpected, SendExpected, RecvExpected, Put, Get, Lookup, Lease, Deregister
//	      │ Op.start ─► Ticket                                          Done(op, result)
//	      ▼                                                                  ▲ Trigger (user code runs here only)
//	  Endpoint (a plugin's side) ═ wire ═ Endpoint ─► Ticket.Finish ─► completion queue
//	      ▲                                                ▲
//	      └── Progress moves bytes, runs no user code ─────┘
//
// An unexpected message needs no posted receive: it lands in an envelope that the receiver guaranteed beforehand. An expected
// message is matched, by sender and tag, with a receive that was posted first.
//
// What always holds:
//   - An operation whose start returned nil ends exactly once: success, canceled, or an error. A start that returns an
//     error runs no callback.
//   - A callback runs only inside Trigger, on the goroutine that called it, with no lock held. It may call anything.
//   - When a callback runs, no transport will read or write the operation's memory again.
//   - Cancel is local: it never blocks, and Trigger right after it runs the canceled callback.
//
// Buffers belong to the operation from its start until its callback runs.
//
// Not here: remote procedure calls (package hg), transfers of several segments in chunks (package bulk), waiting
// (package request).
package na
