// Package na is the network abstraction: operations on messages and memory that start now and end
// once. Their callbacks wait in a completion queue.
//
// A program begins with these; examples/na is a whole one:
//
//	class, err := na.Open("tcp://:7000", na.Config{}) // a listening class; "tcp://" for one that only dials
//	c, err := class.NewContext()                      // a completion queue, and the progress that fills it
//	op := c.NewOp(func(op *na.Op, r na.Result) { … }) // an operation, which can be reused
//	err = c.Lookup(op, "tcp://10.0.0.7:7000")         // starts it; r.Addr is the address
//	for { c.Progress(time.Second); c.Trigger(0) }     // moves bytes; runs callbacks
//
// and then with [Context.SendUnexpected], [Context.RecvUnexpected], [Context.SendExpected],
// [Context.RecvExpected], [Class.Register], [Context.Put], [Context.Get] and [Op.Cancel].
// Transports come from package plugins/all or from one of the plugins.
//
//	Context: SendUnexpected, RecvUnexpected, SendExpected, RecvExpected, Put, Get, Lookup, Lease, Deregister
//	      │ Op.beginLife ─► ticket                                        Done(op, result)
//	      ▼                                                                ▲ Trigger (user code runs here only)
//	  endpoint: sessions, envelopes, memory ─► finish ─► completion queue
//	      │ Session.Pull        ▲ Session.Deliver, Place
//	      ▼                     │            Progress moves bytes, runs no user code
//	  carrier.Carrier ═════ wire ═════ carrier.Carrier of the peer
//
// An unexpected message needs no posted receive: it arrives in an envelope that the receiver has
// guaranteed beforehand. An expected message is matched, by sender and tag, with a receive that was
// posted first.
//
// Invariants:
//   - An operation whose start returned nil ends exactly once: success, canceled, or an error. A start that returns an
//     error runs no callback.
//   - A callback runs only inside Trigger, on the goroutine that called it, with no lock held. It may call anything.
//   - When a callback runs, no transport will read or write the operation's memory again.
//   - Cancel is local: it never blocks, and Trigger right after it runs the canceled callback.
//
// Buffers belong to the operation from its start until its callback runs.
//
// The methods for layers above (calls with their answers, streams, the order of callbacks) are
// behind [Context.Upper].
//
// # Inside
//
// A session is the state that a context has with one context of one peer. The carrier pulls frames
// out of it. Messages are copied into the carrier's buffer when they are pulled, so that an
// operation that has not been sent can be canceled. Pieces of bulk data are described by a View
// (operation, offset, length), which the carrier borrows for each transmission and returns.
//
// Locks: endpoint.mu guards all state of one context, including its sessions. It is never held
// across a system call that may block, nor across user code. domain.mu (registered memory, budget)
// may be taken inside it. The loopback carrier takes the locks of two endpoints one after the
// other, never both.
//
// This package does not define the wire format of frames (package carrier and the plugins), remote
// procedure calls (package hg), transfers of several segments in chunks (package bulk), or waiting
// (package request).
package na
