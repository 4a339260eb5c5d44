//go:build quicksilver_next

package frame

import (
	"encoding/binary"
	"sync/atomic"
)

// This file implements the release after this one, for the tests of upgrades. It has one addition
// of each kind, and uses them only with peers that support them.

// The versions of the wire form. In version 8 a CREDIT has 8 as its operation; in version 7 it has 0.
const (
	OldestVersion = 7
	Version       = 8
)

// FeatureNext is the bit of Greeting.Features for a sender that knows the new kinds and the new
// flag.
const FeatureNext = 1 << 40

// The new kinds, and the new flag of CREDIT.
const (
	Note     Kind  = FirstOptional // skipped by receivers that do not know it
	Ask      Kind  = maxKind + 1   // has to be understood
	FlagNext uint8 = FlagTell
)

const labelNext = 0x1400

// Seen counts the additions that were received.
var Seen struct{ Labels, Notes, Asks, Flags, Fields, Credits, Handles atomic.Int64 }

func init() {
	shapes[Note] = shape{"NOTE", 0, true, false, FlagNext}
	shapes[Ask] = shape{"ASK", 0, false, false, 0}
	shapes[Credit].flags |= FlagNext
}

func appendLater(b []byte) []byte {
	b = binary.LittleEndian.AppendUint16(b, labelNext)
	b = binary.LittleEndian.AppendUint16(b, uint16(len("next")))
	return append(b, "next"...)
}

func takeLater(label uint16, v []byte) bool {
	if label != labelNext || string(v) != "next" {
		return false
	}
	Seen.Labels.Add(1)
	return true
}
