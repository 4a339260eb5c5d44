// Package happyeyeballs decides in which order and when the addresses of a host are dialed, after
// RFC 8305.
//
//	addresses of a name ─► Order ─► families interleaved ─► Race: which one to dial now, and when to ask again
//
// It dials nothing and reads no clock: the caller passes the time.
package happyeyeballs
