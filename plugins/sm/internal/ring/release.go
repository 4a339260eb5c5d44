//go:build !quicksilver_next

package ring

// Version is the version of the memory layout of this release, OldestVersion that of the release
// before. This release speaks both.
const (
	OldestVersion = 5
	Version       = 5
)
