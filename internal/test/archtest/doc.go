// Package archtest holds tests about the source tree itself: what the compiler and the linters do
// not know about this project.
//
//	imports     point down only: the table in imports_test.go has the allowed imports
//	comments    a package is described in doc.go, a program in its package comment
//	sleep       no test waits by time.Sleep
//	purity      protocol code starts no goroutine and reads no clock and no random source: they are passed in
//	leftovers   no marks of unfinished work
//	unsafe      stays where shared memory and system calls are; nothing uses cgo
//	layout      the root has the folders and files of a list, and no Go file
//	unused      a product package is imported by a program, by another package, or by users for a reason that the rule gives
//	helpers     packages under internal/test are imported by tests
//	versions    WIRE.md gives the versions that the code has
//	twins       where files are grouped by nouns, x_test.go tests x.go, and scenario_NAME_test.go what crosses several
//	links       every link of a Markdown page leads to a file, and to a heading, of this tree; a Go file that a page names is there
//
// TestWords reports, without a rule, how names, comments and lines compare with projects that read
// well.
//
// Each check is a function of a file tree, so that each is also run on a small made-up tree that
// breaks its rule. The tests parse the sources and need neither the go command nor a network. Files
// for other systems are looked at as well.
package archtest
