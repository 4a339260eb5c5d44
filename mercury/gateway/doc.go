// Package gateway forwards calls between programs of this module, on any transport, and programs that use C Mercury
// over ofi+tcp.
//
//	hg program ── Call ──► Gateway ── mercury.Node.Call ──► C service
//	hg service ◄── name ── Gateway ◄── request ──────────── C client
//	           ── Get, Put ──►     ── reads, writes ──────►
//
// Arguments are the bytes of package proc; Proc is the codec for services of package qs that C clients call, too.
// Memory that a caller lends is copied to the gateway, lent from there to the C service, and copied back. Memory that
// a C client lends is read and written in chunks of 256 KiB while its request is in flight. A gateway calls only the
// C processes in its Config.
//
// On the side of C there is no encryption and no authorization. On the other side the node's TLS and Authorize apply.
package gateway
