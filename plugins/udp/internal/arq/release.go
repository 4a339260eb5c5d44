//go:build !quicksilver_next

package arq

// Version is the version of packets of this release, OldestVersion that of the release before. This
// release speaks both.
const (
	OldestVersion = 3
	Version       = 3
)
