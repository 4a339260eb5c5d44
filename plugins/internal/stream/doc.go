// Package stream puts the frames of a link onto a byte stream and takes the peer's frames off it. It knows no socket,
// clock or goroutine: tcp drives it with sockets, the simulator with simulated streams that it cuts anywhere.
//
//	Link.Pull ─► out buffer ─┐                             ┌─► in buffer ─► Link.Deliver (messages, whole)
//	             View ───────┴─ Gather ═ stream ═ Scatter ─┴─► View         Link.Place, Placed (bulk, piece by piece)
//
// Framing never breaks: when the memory of a piece of bulk data is taken back in the middle, or turns out not to be
// there, the rest of the piece is sent as zeroes, or read and dropped.
package stream
