// Package xnet has the bytes that libfabric's tcp provider puts on a connection: its set-up message and its message headers.
//
//	connection   Setup ◄─► Setup, then Headers with payloads in both directions
//
// It does no I/O and allocates nothing. Whatever the bytes, Parse functions return an error or a value whose lengths are within the
// bounds of this package; a caller bounds the payload.
//
// What a header holds beyond its operation is not looked at: senders leave old bytes there.
package xnet
