// Package impi implements version 0.0 of the Interoperable Message-Passing Interface, which lets different
// implementations of MPI start together and exchange messages. It follows the specification byte for byte.
// Quicksilver itself does not use this protocol.
//
//	startup      clients ──► server: 14 labels, each collected from all clients and sent to all
//	             Exchange over a rendezvous.Member with Form: protocol.Strict; Client, World
//	messages     agent ◄──► agent: packets, flow control, long messages, cancel
//	             Agent, Packet; over a connection: package channel
//
// During startup, each client (an MPI implementation with its hosts and processes) receives the descriptions of all
// clients. The state machines are in package rendezvous/protocol. This package defines the contents of the labels and
// the values derived from them. Agents then connect to each other, using the addresses and limits exchanged during
// startup.
//
// A message can be canceled until it is received, that is, until its first packet matches a receive. The agent at the
// destination decides. It either destroys the message and replies CANCELYES, or replies CANCELNO. Each request gets
// exactly one reply.
//
// The package starts no goroutines, reads no clock and opens no sockets. Its input and output consist only of bytes
// and events. docs/internals/IMPI.md lists the decisions where the specification leaves a choice.
//
// Collective operations, data types, communicators and the rest of MPI are out of scope.
package impi
