// Package frame implements the wire format that all carriers share: a fixed 32-byte header, a tail
// whose length depends on the kind, and a payload. docs/internals/WIRE.md describes every byte.
//
//	 0        4    5     6       8            16           24       28       32
//	┌────────┬────┬─────┬───────┬────────────┬────────────┬────────┬────────┬──────┬─────────┐
//	│ length │kind│flags│context│ operation  │    tag     │ credit │ CRC32C │ tail │ payload │   little-endian
//	└────────┴────┴─────┴───────┴────────────┴────────────┴────────┴────────┴──────┴─────────┘
//	  length counts tail and payload
//
// The package does not read a clock, allocate memory based on a received length, or use a
// connection.
package frame
