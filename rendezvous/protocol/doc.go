// Package protocol implements the startup protocol of processes that are started together. A server collects one part
// per label from each client and sends the whole set to all of them.
//
//	client                             server                                     to all clients
//	AUTH                          ──►  authenticates the client
//	join, with a rank             ──►  when all have joined:         ──►          number of clients
//	COLL label, part              ──►  when the label is complete:   ──►          COLL label, mask of ranks, parts
//	DONE                          ──►  when all have sent DONE:      ──►          DONE
//	FINI                          ──►  counts the client as left
//
// There are two forms. Strict is IMPI 0.0, byte for byte, with at most 32 clients and a mask of 32 bits. Native
// supports up to MaxNative clients, a wider mask, the length of each part, authentication by HMAC, and a command that
// carries the reason for a failure. docs/internals/IMPI.md describes the bytes of both, and the decisions where the
// IMPI specification leaves a choice.
//
// Server and Client are state machines. Their input is passed to methods, and Take returns the resulting bytes and
// events. They start no goroutines, read no clock, have no source of randomness, and are not safe for concurrent use.
// The boundaries of the byte slices passed to them have no significance.
//
// Every number received from a peer is validated before it is used. Until a connection has joined, it can make the
// server allocate no more than a few dozen bytes. After that, Limits apply, and memory grows with the bytes that have
// arrived, never with an announced length.
//
// Sockets, timeouts and TLS are provided by package rendezvous.
package protocol
