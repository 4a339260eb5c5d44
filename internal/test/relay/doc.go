// Package relay forwards datagrams between peers and a target, with the faults of networks.
//
//	peer ──► Relay.Addr ═══ Rules: lost, repeated, late, damaged ═══► target
//	     ◄──            ═══ the same                             ◄══
//
// Each peer has a socket of its own towards the target, which so distinguishes them. A Relay shuts
// when a number of bytes has passed (ShutAfter), and passes nothing on until it is opened. What
// happens to which datagram is drawn from a seed; which datagrams there are, and when, is up to the
// peers.
package relay
