//go:build !quicksilver_next

package ring

// The versions of the layout that this release speaks: Version is its own, OldestVersion that of the release before.
const (
	OldestVersion = 5
	Version       = 5
)
