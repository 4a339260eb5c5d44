// Package channel drives an agent of package impi over a net.Conn.
//
//	Send, Receive, Probe ──► Channel ──► impi.Agent ──► one goroutine writes ──► conn
//	Request.Wait, Cancel ◄──          ◄──            ◄── one goroutine reads  ◄──
//
// The protocol is in package impi; this package adds goroutines, a lock and blocking methods. When the connection
// ends, all active operations end, with an error that says whether their message may have been received.
//
// Listening and dialing, with the addresses of the startup, are left to the caller.
package channel
