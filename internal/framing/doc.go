// Package framing writes the frames of a session to a byte stream and parses the frames of the
// peer. It has no sockets, clocks or goroutines: tcp drives it with sockets, the simulator with
// simulated streams that it cuts anywhere.
//
//	Session.Pull ► out buffer ┐                            ┌─► in buffer ─► Session.Deliver (messages, whole)
//	             View ───────┴─ Gather ═ stream ═ Scatter ─┴─► View         Session.Place, Placed (bulk, piece by piece)
//
// The framing always stays intact: when the memory of a piece of bulk data is revoked in the middle
// of the piece, or has no pages behind it, the rest of the piece is sent as zeroes, or read and
// dropped.
package framing
