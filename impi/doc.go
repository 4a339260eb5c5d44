// Package impi implements version 0.0 of the Interoperable Message-Passing Interface, with which different
// implementations of MPI start together and exchange messages. It follows the specification byte for byte.
// Quicksilver itself does not use this protocol.
//
//	startup      clients ──► server: 14 labels, each collected from all clients and sent to all
//	             Exchange over a rendezvous.Member with Form: protocol.Strict; Client, World
//	messages     agent ◄──► agent: packets, flow control, long messages, cancel
//	             Agent, Packet; over a connection: package channel
//
// In the startup each client (an MPI implementation with its hosts and processes) gets the descriptions of all
// others. The state machines are in package rendezvous/protocol; this package has the contents of the labels and the
// values that follow from them. Agents then connect to each other, with the addresses and limits of the startup.
//
// A message can be canceled until it is received, that is, until its first packet matches a receive. The agent at the
// destination decides: it destroys the message and replies CANCELYES, or it replies CANCELNO. Each request gets one
// reply.
//
// The package starts no goroutines, reads no clock and opens no sockets: bytes and events go in, bytes and events
// come out. docs/internals/IMPI.md lists the decisions where the specification leaves a choice.
//
// Collective operations, data types, communicators and the rest of MPI are not part of it.
package impi
