//go:build !quicksilver_next

package arq

// Version is the packet version of this release, and OldestVersion that of the previous release.
// This release supports both.
const (
	OldestVersion = 3
	Version       = 3
)
