// Package framing writes a session's frames to a byte stream and parses the peer's frames. It uses
// no sockets, clocks or goroutines. Package tcp drives it with sockets, and the simulator drives it
// with simulated streams that may be split at any byte.
//
//	Session.Pull ► out buffer ┐                            ┌─► in buffer ─► Session.Deliver (messages, whole)
//	             View ───────┴─ Gather ═ stream ═ Scatter ─┴─► View         Session.Place, Placed (bulk, piece by piece)
//
// Frame boundaries are always preserved. If the memory of a bulk data piece is revoked while the
// piece is being transferred, or has no pages behind it, the rest of the piece is sent as zeros, or
// read and discarded.
package framing
