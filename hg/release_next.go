//go:build quicksilver_next

package hg

import (
	"encoding/binary"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// This file implements a hypothetical future release, for tests of upgrades. In its version 5, the
// codec of a request follows the metadata length, and the code of a response follows its fate. The
// appended field must equal nextField.
const (
	oldestWire  = 4
	wireVersion = 5
	ownFields   = 1

	nextField = 0x7478_656e_2e73_7121
)

func requestFromWire(b []byte) bool {
	if b[0] == 5 {
		b[2], b[3] = b[3], b[2]
	}
	return b[0] == 4 || b[0] == 5
}

func responseFromWire(b []byte) bool { return requestFromWire(b) }

func requestToWire(b []byte) { b[2], b[3] = b[3], b[2] }

func requestToOlder(b []byte, version uint16) {
	if b[0] == 5 && version == 4 {
		b[0], b[2], b[3] = 4, b[3], b[2]
	}
}

func responseToWire(b []byte, version uint8) {
	if version == 4 {
		b[0] = 4
	} else {
		b[2], b[3] = b[3], b[2]
	}
}

func putFields(b []byte) { binary.LittleEndian.PutUint64(b, nextField) }

func takeFields(b []byte) {
	if binary.LittleEndian.Uint64(b) == nextField {
		frame.Seen.Fields.Add(1)
	}
}
