//go:build !quicksilver_next

package protocol

// The versions of the native form that this release speaks: nativeVersion is its own, oldestNative that of the release before.
const (
	oldestNative  = 1
	nativeVersion = 1
)
