//go:build !quicksilver_next

package bulk

// ownFields is the number of 8-byte extension fields that this release adds to an encoded handle.
// appendFields appends them, and takeFields parses those that a peer has added.
const ownFields = 0

func appendFields(b []byte) []byte { return b }
func takeFields([]byte)            {}
