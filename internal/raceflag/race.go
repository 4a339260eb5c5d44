//go:build race

package raceflag

// Enabled reports whether the race detector is enabled.
const Enabled = true
