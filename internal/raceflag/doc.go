// Package raceflag reports whether the race detector is on: it makes tests about ten times
// slower.
package raceflag
