// Package mutant is bugs that can be switched on, one at a time, to prove that the tests catch them.
//
//	production code ── if mutant.NoCRC { … } ──┐
//	                                           ├─ without the tag mutants: a constant false, the compiler drops the code
//	                                           └─ with it: true if QUICKSILVER_MUTANT=no-crc
//
//	go test -tags mutants ./internal/mutant    each mutant against the simulator's seeds and against the tests named for it
//
// A test that is named for a mutant has to fail with words of its own: it runs with QUICKSILVER_MUTANT_BLIND=1, which leaves
// the tables of internal/states alone.
//
// Each is a bug that a system of this kind has had, or a promise of ours broken: on.go lists them, run_test.go says who
// catches which. A hook is as small as the bug, and stands where the bug would.
package mutant
