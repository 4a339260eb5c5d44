//go:build quicksilver_next

package protocol

// The versions that the release after this one speaks, in tests of upgrades.
const (
	oldestNative  = 1
	nativeVersion = 2
)
