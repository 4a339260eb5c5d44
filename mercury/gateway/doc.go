// Package gateway joins programs of this module, on any transport, with programs that use C Mercury over ofi+tcp.
//
//	hg program ── Call ──► Gateway ── mercury.Node.Call ──► C service
//	hg service ◄── name ── Gateway ◄── request ──────────── C client
//	           ── Get, Put ──►     ── reads, writes ──────►
//
// Arguments pass as the bytes that package proc encodes: Proc is their codec, for services of package qs that C clients call too.
// What a caller lends is copied to the gateway, lent from there to the C service, and copied back; what a C client lends is read and
// written in pieces of 256 KiB while its request is under way. A gateway calls only the C processes that its Config names.
//
// Not here: secrecy or permissions on the side of C, which has neither. On the other side the node's TLS and Authorize decide.
package gateway
