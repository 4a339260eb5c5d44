// Package hgwire encodes and parses the contents of C Mercury's messages, including sender addresses, request and
// response headers, bulk handles, and RPC IDs.
//
// An unexpected message consists of the sender's address, a Request and the input. An expected message consists of a
// Response and the output. If flag More is set, the message contains, in place of the input or output, a handle of the
// memory that holds it.
//
// The package performs no I/O. For arbitrary input, the parse functions return an error or a value within the limits of
// this package, and allocate memory at most proportional to the length of the input.
package hgwire
