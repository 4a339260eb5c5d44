// Package impi speaks version 0.0 of the Interoperable Message-Passing Interface, by which different implementations of MPI
// start together and exchange messages. It is exact to the byte, and it is not what Quicksilver itself speaks.
//
//	startup      clients ──► server: 14 labels, each collected from all and sent to all
//	             Exchange over a rendezvous.Member with Form: protocol.Strict; Client, World
//	messages     agent ◄──► agent: packets, flow control, long messages, and taking a message back
//	             Agent, Packet; over a connection: package channel
//
// The startup tells each client (an MPI implementation with its hosts and processes) all about the others. Its state
// machines are in package rendezvous/protocol, which has a second form for programs of our own; what the labels hold, and
// what follows from them, is here. Agents then connect to each other by the addresses and limits that they have learnt.
//
// A message can be taken back until it is received, which it is when its first packet matches a receive. The agent at its
// destination decides: it destroys the message and answers yes, or it answers no. Each request gets one answer.
//
// Nothing here starts a goroutine, reads a clock or opens a socket: bytes and events go in, bytes and events come out.
// docs/internals/IMPI.md says which reading was taken where the source is silent.
//
// Not here: collective operations, data types, communicators and the rest of MPI.
package impi
