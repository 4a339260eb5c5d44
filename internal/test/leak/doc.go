// Package leak fails the tests of a package that leave goroutines or descriptors behind.
//
//	func TestMain(m *testing.M) { leak.Main(m) }
//
// looks at goroutines and open descriptors before the first test and after the last, so tests may
// run in parallel. Which test it was is found with go test -leak.each. A test that runs alone may
// look for itself:
//
//	func TestX(t *testing.T) {
//		leak.Check(t)            goroutines and open descriptors now
//		...
//	}                            afterwards: the same again, within 5 s
//
// Call Check before anything that registers a cleanup: cleanups run last in, first out, so it looks
// after them all.
//
// What counts is what is new at the end. Goroutines of the runtime, of package testing and of
// signal delivery are tolerated, and so is Go's own epoll descriptor, which is made before the
// first look. Descriptors are distinguished by number and by what they are linked to; only Linux can
// list them, elsewhere the check is about goroutines alone.
//
// Both turn on the tables of package fsmcheck, and fail if one was broken.
package leak
