// Package raceflag tells tests whether the race detector is on: it makes everything about ten times
// slower.
package raceflag
