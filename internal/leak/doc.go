// Package leak fails a test that leaves something behind.
//
//	func TestX(t *testing.T) {
//		leak.Check(t)                                   goroutines and open descriptors now
//		leak.Gauge(t, "registered regions", c.Regions)  a number now
//		...
//	}                                                   afterwards: the same again, within 5 s
//
// Call it before anything that registers a cleanup: cleanups run last in, first out, so the check comes after them all.
//
// What counts is what is new at the end. Goroutines of the runtime, of package testing and of signal delivery are
// tolerated, and so is Go's own epoll descriptor, which is made before the first look. Descriptors are told apart by number
// and by what they are linked to; only Linux can list them, elsewhere the check is about goroutines alone.
//
// Not for tests that call t.Parallel, because another test's goroutines would be counted, and not inside a synctest
// bubble, whose clock does not wait for the world outside.
package leak
