// Package xnet encodes and parses the protocol of libfabric's tcp provider: its set-up message and its message headers.
//
//	connection   Setup ◄─► Setup, then Headers with payloads in both directions
//
// It does no I/O and allocates nothing. For any bytes the Parse functions return an error or a value whose lengths
// are within the limits of this package; the caller limits the payload.
//
// Fields of a header that its operation does not use are ignored, because senders leave old bytes there.
package xnet
