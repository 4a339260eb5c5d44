//go:build quicksilver_next

package protocol

// Versions supported by the release that follows this one, for upgrade tests.
const (
	oldestNative  = 1
	nativeVersion = 2
)
