// Package framing puts the frames of a session onto a byte stream and takes the peer's frames off it. It knows no socket,
// clock or goroutine: tcp drives it with sockets, the simulator with simulated streams that it cuts anywhere.
//
//	Session.Pull ► out buffer ┐                            ┌─► in buffer ─► Session.Deliver (messages, whole)
//	             View ───────┴─ Gather ═ stream ═ Scatter ─┴─► View         Session.Place, Placed (bulk, piece by piece)
//
// Framing never breaks: when the memory of a piece of bulk data is taken back in the middle, or turns out not to be
// there, the rest of the piece is sent as zeroes, or read and dropped.
package framing
