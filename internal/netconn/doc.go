// Package netconn is the carrier of plugins whose connections are net.Conns: each connection has a goroutine that reads and one that
// writes. Package streamnet makes plugins of it, and tcp uses it where sockets are not read by the leader of Progress; tcp's other
// carrier takes the connections that its Server has accepted.
//
//	Server:   Accept ─► pending: Begin (TLS), HELLO ─► Adopter.Adopt, of the context that the HELLO names
//	Carrier:  Dial ─► conn
//	          conn.read:   net.Conn.Read ─► framing.In ─► Session.Deliver, Place, Placed
//	          conn.write:  Session.Pull ─► framing.Out ─► copy ─► net.Conn.Write
//
// What holds always: a read or write that waits never has memory of an operation, so that a cancel releases it at once; no
// lock is held while one waits; connections whose HELLO has not come are bounded, in number and in time.
package netconn
