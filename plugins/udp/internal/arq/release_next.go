//go:build quicksilver_next

package arq

// OldestVersion and Version are those of the next release, for upgrade tests.
const (
	OldestVersion = 3
	Version       = 4
)
