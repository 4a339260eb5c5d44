// Package framing writes a session's frames to a byte stream and parses the peer's frames. It uses
// no sockets, clocks or goroutines. Package tcp drives it with sockets, and the simulator drives it
// with simulated streams that may be split at any byte.
//
// An Out pulls frames from the session, and its Gather method returns the buffers to write. An In's
// Scatter method returns the buffers to read into, and its Parse method passes each complete
// message to the session's Deliver and each piece of bulk data to Place and Placed. Bulk data is
// written from, and read into, user memory directly.
//
// Frame boundaries are always preserved. If the memory of a bulk data piece is revoked while the
// piece is being transferred, or has no pages behind it, the rest of the piece is sent as zeros, or
// read and discarded.
package framing
