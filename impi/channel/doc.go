// Package channel drives an agent of package impi over a net.Conn.
//
//	Send, Receive, Probe ──► Channel ──► impi.Agent ──► one goroutine writes ──► conn
//	Request.Wait, Cancel ◄──          ◄──            ◄── one goroutine reads  ◄──
//
// Package impi implements the protocol. This package adds goroutines, a lock and blocking methods. When the
// connection ends, all active operations fail, with an error that states whether their message may have been
// received.
//
// The caller is responsible for listening and dialing, using the addresses exchanged during startup.
package channel
