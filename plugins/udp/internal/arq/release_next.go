//go:build quicksilver_next

package arq

// OldestVersion and Version are those of the next release, for tests of upgrades.
const (
	OldestVersion = 3
	Version       = 4
)
