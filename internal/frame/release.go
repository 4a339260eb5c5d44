//go:build !quicksilver_next

package frame

// The versions of the wire format that this release supports. Version is the current one, and
// OldestVersion is that of the previous release.
const (
	OldestVersion = 7
	Version       = 7
)

// appendLater appends the HELLO labels that only a later release has, and takeLater parses them.
// takeLater returns false if this release does not know the label.
func appendLater(b []byte) []byte           { return b }
func takeLater(label uint16, v []byte) bool { return false }
