//go:build quicksilver_next

package ring

// OldestVersion and Version are the versions of the next release, for tests of upgrades.
const (
	OldestVersion = 5
	Version       = 6
)
