// Package mutant has bugs to plant in the code, one at a time, to prove that the tests catch them.
//
//	calls.go, memory.go, sessions.go, packets.go, rings.go, streams.go, schema.go, outcomes.go, page.go: the bugs, each as an edit of a file, and the tests that must fail
//	                 │
//	              Overlay ── files with every bug in them, each behind planted.Is("its-name") ── go test -overlay
//	                 │
//	        QUICKSILVER_MUTANT=its-name turns on one
//
// The code that is built and shipped has none of this in it.
//
//	go test ./internal/test/mutant                   every edit fits the code, and the result compiles
//	go test ./internal/test/mutant -mutant.run=.     every bug is caught
//
// To add a mutant, add an entry to one of these files. An edit is as small as the bug. To change a
// line that is an anchor, change the anchor too.
package mutant
