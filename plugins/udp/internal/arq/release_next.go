//go:build quicksilver_next

package arq

// The versions that the release after this one speaks, in tests of upgrades.
const (
	OldestVersion = 3
	Version       = 4
)
