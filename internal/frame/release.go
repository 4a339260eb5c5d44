//go:build !quicksilver_next

package frame

// The versions of the wire form that this release supports: Version is its own, OldestVersion that
// of the release before.
const (
	OldestVersion = 7
	Version       = 7
)

// appendLater appends the labels of HELLO that only a later release has. takeLater parses such a
// label; false: this release does not know it.
func appendLater(b []byte) []byte           { return b }
func takeLater(label uint16, v []byte) bool { return false }
