// Package na is the network abstraction layer. It provides asynchronous operations on messages and
// memory, each of which completes exactly once. Their callbacks are queued in a completion queue.
//
// A program begins like this; examples/na is a complete program:
//
//	class, err := na.Open("tcp://:7000", na.Config{}) // a listening class; "tcp://" for one that only dials
//	c, err := class.NewContext()                      // a completion queue, and the progress that fills it
//	op := c.NewOp(func(op *na.Op, r na.Result) { … }) // an operation, which can be reused
//	err = c.Lookup(op, "tcp://10.0.0.7:7000")         // starts it; r.Addr is the address
//	for { c.Progress(time.Second); c.Trigger(0) }     // moves bytes; runs callbacks
//
// It then uses [Context.SendUnexpected], [Context.RecvUnexpected], [Context.SendExpected],
// [Context.RecvExpected], [Class.Register], [Context.Put], [Context.Get] and [Op.Cancel].
// Transports are provided by package plugins/all or by the individual plugin packages.
//
//	Context: SendUnexpected, RecvUnexpected, SendExpected, RecvExpected, Put, Get, Lookup, Lease, Deregister
//	      │ Op.beginLife ─► ticket                                        Done(op, result)
//	      ▼                                                                ▲ Trigger (user code runs here only)
//	  endpoint: sessions, envelopes, memory ─► finish ─► completion queue
//	      │ Session.Pull        ▲ Session.Deliver, Place
//	      ▼                     │            Progress moves bytes, runs no user code
//	  carrier.Carrier ═════ wire ═════ carrier.Carrier of the peer
//
// An unexpected message does not need a posted receive. It arrives in an envelope that the receiver
// has guaranteed in advance. An expected message is matched by sender and tag with a receive that
// was posted earlier.
//
// Invariants:
//   - An operation whose start function returned nil completes exactly once: with success, cancellation or an error. If
//     the start function returned an error, no callback runs.
//   - A callback runs only inside Trigger, on the goroutine that called it, with no lock held. It may call any function.
//   - When a callback runs, no transport will read or write the operation's memory again.
//   - Cancel is local and never blocks. A call to Trigger immediately after it runs the callback of the canceled operation.
//
// Buffers belong to the operation from its start until its callback runs.
//
// The methods intended for higher layers (calls with their responses, streams, the order of
// callbacks) are available through [Context.Upper].
//
// # Implementation
//
// A session is the state that a context shares with one context of one peer. The carrier pulls
// frames from it. Messages are copied into the carrier's buffer when they are pulled, so that an
// operation that has not been sent can be canceled. Each piece of bulk data is described by a View
// (operation, offset, length), which the carrier borrows for each transmission and then returns.
//
// Locks: endpoint.mu guards all state of a context, including its sessions. It is never held across
// a system call that may block, nor while user code runs. domain.mu (registered memory, budget) may
// be acquired while endpoint.mu is held. The loopback carrier acquires the locks of two endpoints
// one after the other and never holds both.
//
// This package does not define the wire format of frames (package carrier and the plugins), remote
// procedure calls (package hg), chunked transfers of several segments (package bulk), or waiting
// (package request).
package na
