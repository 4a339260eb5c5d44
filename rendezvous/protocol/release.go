//go:build !quicksilver_next

package protocol

// The versions of the native form that this release supports: nativeVersion is its own, oldestNative that of the
// previous release.
const (
	oldestNative  = 1
	nativeVersion = 1
)
