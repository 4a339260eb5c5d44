// Package frame is the wire form that all carriers share: a fixed header of 32 bytes, a tail whose
// length the kind fixes, and a payload. docs/internals/WIRE.md describes every byte.
//
//	 0        4    5     6       8            16           24       28       32
//	┌────────┬────┬─────┬───────┬────────────┬────────────┬────────┬────────┬──────┬─────────┐
//	│ length │kind│flags│context│ operation  │    tag     │ credit │ CRC32C │ tail │ payload │   little-endian
//	└────────┴────┴─────┴───────┴────────────┴────────────┴────────┴────────┴──────┴─────────┘
//	  length counts tail and payload
//
// The package does not read a clock, does not allocate by a received length, and does not use a
// connection.
package frame
