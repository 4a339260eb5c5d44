//go:build !quicksilver_next

package arq

// The versions of the packets that this release speaks: Version is its own, OldestVersion that of the release before.
const (
	OldestVersion = 3
	Version       = 3
)
