// Package hgwire has the bytes that C Mercury puts into the messages of a transport: the name of the sender, the headers of requests
// and responses, bulk handles, and the identities of RPCs.
//
//	unexpected message   Source, Request, input (or with flag More the handle of where it lies)
//	expected message     Response, output (or the same)
//
// It does no I/O. Whatever the bytes, parse functions return an error or a value within the bounds of this package, and allocate at most
// a constant times the length of what they are given.
package hgwire
