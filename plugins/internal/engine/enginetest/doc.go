// Package enginetest is a network in memory, for tests of the engine, the stream framer and package na.
//
//	class a ─ engine ─ stream.Out ─► pipe of bounded room ─► stream.In ─ engine ─ class b
//
// It has a clock of its own, which passes only while somebody waits in Progress: a test that drives every context from
// one goroutine gives the same result each time. Reads may be cut into pieces of any size. It starts no goroutine.
//
// Not here: loss, damage, partitions (the simulator has them), and goroutines that wait for one another.
package enginetest
