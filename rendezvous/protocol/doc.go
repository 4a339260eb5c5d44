// Package protocol is what processes that start together say to find each other: a server collects one labelled part from
// each client and sends the whole set to all of them.
//
//	client                                     server                                    the other clients
//	AUTH                          ──►  who is it?
//	join, with a rank             ──►  are all here?  ── the number of clients ──►       to all, at once
//	COLL label, part              ──►  is the label complete? ── label, who, parts ──►   to all, at once
//	DONE                          ──►  has everybody said so? ── DONE ──►                to all, at once
//	FINI                          ──►  the client may leave
//
// There are two forms of it. Strict is IMPI 0.0, byte for byte: at most 32 clients and one mask of 32 bits. Native has any
// number of clients, a wider mask, the length of each part, authentication by HMAC, and a command that says why a
// startup has failed. docs/internals/IMPI.md has the bytes of both, and the decisions where the source of IMPI is silent.
//
// Server and Client are state machines. Bytes and events go in by method calls, bytes and events come out of Take. They
// start no goroutine, read no clock, have no random source and must not be called by two goroutines at once. How bytes
// are cut into pieces on their way makes no difference.
//
// Every number from a peer is checked before it is used. What a connection may hold before it has joined is a few dozen
// bytes; what it may hold afterwards is bounded by Limits, and memory grows with the bytes that have arrived, never with
// a length that was claimed.
//
// Not here: sockets, time limits and TLS, which package rendezvous adds.
package protocol
