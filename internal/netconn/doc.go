// Package netconn is the carrier of plugins whose connections are net.Conns: each connection has a
// goroutine that reads and one that writes. Package streamnet builds plugins on it. Package tcp
// uses it where sockets are not read by the leader of Progress; the other carrier of tcp gets its
// connections from the Server of this package.
//
//	Server:   Accept ─► half-open: Begin (TLS), HELLO ─► Adopter.Adopt, of the context that the HELLO names
//	Carrier:  Dial ─► conn
//	          conn.readLoop:   net.Conn.Read ─► framing.In ─► Session.Deliver, Place, Placed
//	          conn.writeLoop:  Session.Pull ─► framing.Out ─► copy ─► net.Conn.Write
//
// Invariants: a blocked read or write never uses memory of an operation, so that a cancel releases
// it at once; no lock is held during one; half-open connections, those whose HELLO has not arrived,
// are limited in number and in time.
package netconn
