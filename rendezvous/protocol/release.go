//go:build !quicksilver_next

package protocol

// Versions of the native form supported by this release: nativeVersion is the newest, and oldestNative is the one
// that the previous release uses.
const (
	oldestNative  = 1
	nativeVersion = 1
)
