//go:build !quicksilver_next

package ring

// Version is this release's version of the memory layout. OldestVersion is that of the previous
// release. This release supports both.
const (
	OldestVersion = 5
	Version       = 5
)
