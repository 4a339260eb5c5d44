// Package engine is the semantics of package na over any carrier: it is the same for every plugin.
//
//	na.Op ─► Endpoint.SendUnexpected …                                       Ticket.Finish ─► completion queue
//	              │ attach to a Link                                               ▲
//	              ▼                                                                │
//	   Link queues: control, messages, moves                     match table, envelopes, registered memory
//	              │ Link.Pull (the carrier asks when it has room)                  ▲ Link.Deliver, Link.Place
//	              ▼                                                                │
//	         Carrier ═════════════════════════ wire ═════════════════════════ Carrier
//
// A Link is a session with one context of one peer. The carrier pulls frames out of it: messages are copied into the
// carrier's buffer when they are pulled, so that an operation that has not left can be taken back; pieces of bulk data
// are named by a View (operation, offset, length) that the carrier borrows for each transmission and returns.
//
// Locks: Endpoint.mu guards everything of one context, links included. It is never held across a system call that may
// wait, nor across user code. Engine.mu (registered memory, budget) may be taken inside it. The carrier of a process
// to itself takes two endpoints one after the other, never both.
//
// The engine starts no goroutine and has neither clock nor randomness of its own: they come with Poll and from Options.
package engine
