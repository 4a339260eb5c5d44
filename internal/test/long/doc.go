// Package long selects the amount of tests: few cases by default, all with QUICKSILVER_LONG=1 in
// the environment.
//
//	var races = flag.Int("hg.races", long.Or(10_000, 100_000), "...")
//
// A test that is shorter by default looks at fewer cases of the same kind, and leaves out no kind.
package long

import "os"

// On reports whether everything is to be done.
var On = os.Getenv("QUICKSILVER_LONG") != ""

// Or returns little, or everything in a long run.
func Or[T any](little, everything T) T {
	if On {
		return everything
	}
	return little
}
