//go:build !linux

package na

// newGate returns none: a background poller is not needed where plugins read in goroutines of their own.
func newGate(*poller) (pollGate, error) { return nil, nil }
