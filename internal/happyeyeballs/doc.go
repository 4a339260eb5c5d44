// Package happyeyeballs decides in which order and at what times to dial the addresses of a host,
// following RFC 8305.
//
// Order sorts the addresses of a name so that address families alternate. A Race then determines
// which address to dial now and when to ask again.
//
// It does not dial or read a clock. The caller passes the current time.
package happyeyeballs
