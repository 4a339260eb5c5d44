// Package frame is the wire form that all carriers share: a fixed header of 32 bytes, a tail whose
// length the kind fixes, and a payload. docs/internals/WIRE.md describes every byte.
//
//	 0        4    5     6       8            16           24       28       32
//	┌────────┬────┬─────┬───────┬────────────┬────────────┬────────┬────────┬──────┬─────────┐
//	│ length │kind│flags│context│ operation  │    tag     │ credit │ CRC32C │ tail │ payload │   little-endian
//	└────────┴────┴─────┴───────┴────────────┴────────────┴────────┴────────┴──────┴─────────┘
//	  length counts tail and payload
//
// Nothing here reads a clock, allocates from a length, or uses a connection.
package frame
