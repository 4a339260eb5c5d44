// Package gateway forwards calls between programs that use this module, on any transport, and programs that use C
// Mercury over ofi+tcp.
//
//	hg program ── Call ──► Gateway ── mercury.Node.Call ──► C service
//	hg service ◄── name ── Gateway ◄── request ──────────── C client
//	           ── Get, Put ──►     ── reads, writes ──────►
//
// Arguments are encoded by package proc. Services of package qs that are also called by C clients use Proc as their
// codec. Memory lent by a caller is copied to the gateway, lent from there to the C service, and copied back. Memory
// lent by a C client is read and written in chunks of 256 KiB while its request is in flight. A gateway calls only the
// C processes listed in its Config.
//
// On the C side there is neither encryption nor authorization. On the other side, the node's TLS and Authorize apply.
package gateway
