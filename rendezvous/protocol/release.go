//go:build !quicksilver_next

package protocol

// Versions of the native form supported by this release. nativeVersion is its own version, and oldestNative that of
// the previous release.
const (
	oldestNative  = 1
	nativeVersion = 1
)
