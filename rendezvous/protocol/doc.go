// Package protocol is the startup protocol of processes that are started together: a server collects one part for a
// label from each client, and sends the whole set to all of them.
//
//	client                             server                                     to all clients
//	AUTH                          ──►  authenticates the client
//	join, with a rank             ──►  when all have joined:         ──►          number of clients
//	COLL label, part              ──►  when the label is complete:   ──►          COLL label, mask of ranks, parts
//	DONE                          ──►  when all have sent DONE:      ──►          DONE
//	FINI                          ──►  counts the client as left
//
// There are two forms. Strict is IMPI 0.0, byte for byte: at most 32 clients and a mask of 32 bits. Native has any
// number of clients, a wider mask, the length of each part, authentication by HMAC, and a command with the reason of
// a failure. docs/internals/IMPI.md describes the bytes of both, and the decisions where the IMPI specification
// leaves a choice.
//
// Server and Client are state machines. Bytes and events go in through method calls; Take returns bytes and events.
// They start no goroutines, read no clock, have no random source, and must not be used by two goroutines at the same
// time. The boundaries of the slices of bytes have no meaning.
//
// Every number from a peer is checked before it is used. Before a connection has joined it can make the server hold a
// few dozen bytes; afterwards Limits apply, and memory grows with the bytes that have arrived, never with an
// announced length.
//
// Sockets, timeouts and TLS are in package rendezvous.
package protocol
