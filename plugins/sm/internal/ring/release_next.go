//go:build quicksilver_next

package ring

// The versions that the release after this one speaks, in tests of upgrades.
const (
	OldestVersion = 5
	Version       = 6
)
