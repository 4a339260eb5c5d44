// Package happyeyeballs decides in which order and at what times to dial the addresses of a host,
// following RFC 8305.
//
//	addresses of a name ─► Order ─► families interleaved ─► Race: which one to dial now, and when to call Next again
//
// It does not dial or read a clock. The caller passes the current time.
package happyeyeballs
