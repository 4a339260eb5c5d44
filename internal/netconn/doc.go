// Package netconn implements the carrier of plugins whose connections are net.Conns. Each
// connection has one goroutine that reads and one that writes. Package streamnet builds plugins on
// it. Package tcp uses it where sockets are not read by the leader of Progress; tcp's other carrier
// gets its connections from this package's Server.
//
//	Server:   Accept ─► half-open: Begin (TLS), HELLO ─► Adopter.Adopt, of the context that the HELLO names
//	Carrier:  Dial ─► conn
//	          conn.readLoop:   net.Conn.Read ─► framing.In ─► Session.Deliver, Place, Placed
//	          conn.writeLoop:  Session.Pull ─► framing.Out ─► copy ─► net.Conn.Write
//
// Invariants: a blocked read or write never uses memory of an operation, so that a cancel can
// release it immediately. No lock is held during a read or write. Half-open connections, those
// whose HELLO has not arrived, are limited in number and duration.
package netconn
