// Package hgwire encodes and parses the contents of C Mercury's messages: the address of the sender, the headers of
// requests and responses, bulk handles, and the ids of RPCs.
//
//	unexpected message   Source, Request, input (with flag More: a handle of the memory with the input)
//	expected message     Response, output (with flag More: a handle of the memory with the output)
//
// It does no I/O. For any bytes the parse functions return an error or a value within the limits of this package, and
// allocate at most a constant times the length of the bytes.
package hgwire
