//go:build quicksilver_next

package frame

import (
	"encoding/binary"
	"sync/atomic"
)

// This file implements the next release, for tests of upgrades. It makes one addition of each kind
// and uses it only with peers that support it.

// The supported versions of the wire format. The operation of a CREDIT is 8 in version 8 and 0 in
// version 7.
const (
	OldestVersion = 7
	Version       = 8
)

// FeatureNext is the bit of Greeting.Features set by a sender that supports the new kinds and the
// new flag.
const FeatureNext = 1 << 40

// The new frame kinds, and the new flag of CREDIT.
const (
	Note     Kind  = FirstOptional // skipped by receivers that do not know it
	Ask      Kind  = maxKind + 1   // must be understood
	FlagNext uint8 = FlagTell
)

const labelNext = 0x1400

// Seen counts the additions received.
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
