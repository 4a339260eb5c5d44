//go:build race

package raceflag

// Enabled tells whether the race detector is on.
const Enabled = true
