// Package happyeyeballs decides in which order, and when, the addresses of a host are dialed: RFC 8305.
//
//	addresses of a name ─► Order ─► families interleaved ─► Race: which one to dial now, and when to look again
//
// It dials nothing, and the time comes from its caller.
package happyeyeballs
