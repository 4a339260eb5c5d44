// Package upgrade tests rolling upgrades: processes of several releases, each built from its own
// source, call each other under load while they are replaced one by one. docs/internals/WIRE.md,
// section 0, has the rule that they keep.
//
//	upgrade_test.go ── builds ──► node of the release before (the commit in testdata/wire/OLD), of today, of a made-up next release
//	                ── starts three, replaces them ──► each reports what it has seen (Report); the test compares the reports
package upgrade

// A Report is a node's output at its end.
type Report struct {
	Calls    int               // that have succeeded
	Failed   int               // that have failed, and must not
	Failures []string          // the first of them
	Adds     map[uint64]string // by the number of an add, which is not idempotent: "ok", or its fate
	Ran      []uint64          // the numbers of those that have run here
	// how many new things of the next release have arrived, by their kind; nil for other releases
	Later map[string]int64
}
