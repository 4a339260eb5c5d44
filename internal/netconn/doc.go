// Package netconn implements the carrier of plugins whose connections are net.Conns. Each
// connection has one goroutine that reads and one that writes. Package streamnet builds plugins on
// it. Package tcp uses it where sockets are not read by the leader of Progress; tcp's other carrier
// gets its connections from this package's Server.
//
// A Server accepts connections. A connection is half-open while its handshake is performed and its
// HELLO is read, and is then passed to the Adopter of the context that the HELLO names. A Carrier
// also dials connections. A connection's reader passes received bytes to a framing.In, which calls
// the session's Deliver, Place and Placed. Its writer copies the frames that a framing.Out pulls
// from the session and writes the copy.
//
// Invariants: a blocked read or write never uses memory of an operation, so that a cancel can
// release it immediately. No lock is held during a read or write. Half-open connections, those
// whose HELLO has not arrived, are limited in number and duration.
package netconn
