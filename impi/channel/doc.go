// Package channel connects two agents of package impi by a net.Conn.
//
//	Send, Receive, Probe ──► Channel ──► impi.Agent ──► one goroutine writes ──► conn
//	Request.Wait, Cancel ◄──          ◄──            ◄── one goroutine reads  ◄──
//
// All that is of the protocol is in package impi; here are goroutines, a lock and waiting. When the connection ends, so does
// everything that is under way, with an error that says what is known of it.
//
// Not here: listening and dialing, which the addresses of the startup are for.
package channel
