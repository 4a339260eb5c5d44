// Package xnet encodes and parses the protocol of libfabric's tcp provider, which consists of set-up messages and
// message headers.
//
//	connection   Setup ◄─► Setup, then Headers with payloads in both directions
//
// The package performs no I/O and allocates no memory. For arbitrary input, the Parse functions return an error or a
// value whose lengths are within the limits of this package. The caller must limit the payload.
//
// Header fields that are not used by the header's operation are ignored, because senders leave stale bytes in them.
package xnet
