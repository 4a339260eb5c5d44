// Package raceflag reports whether the race detector is enabled. Tests use it because the race
// detector makes them about ten times slower.
package raceflag
