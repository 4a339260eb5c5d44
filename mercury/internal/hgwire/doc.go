// Package hgwire encodes and parses the contents of C Mercury's messages, including sender addresses, request and
// response headers, bulk handles, and RPC IDs.
//
//	unexpected message   Source, Request, input (with flag More: a handle of the memory with the input)
//	expected message     Response, output (with flag More: a handle of the memory with the output)
//
// The package performs no I/O. For arbitrary input, the parse functions return an error or a value within the limits of
// this package, and allocate memory at most proportional to the length of the input.
package hgwire
