// Package qstest helps to test services that are built on package qs: a server with its client for the time of a test, and a wait for a
// channel that works in the simulator, too.
//
//	test ── Serve(t, register) ──► client node ══ tcp, loopback ══► server node ── register's handlers
//	     ◄── Peer                   both are closed at the end of the test, the client first
//
// A test of one call:
//
//	server := qstest.Serve(t, func(node *qs.Node) {
//		Greet.Handle(node, func(ctx context.Context, name string) (string, error) { return "hello, " + name, nil })
//	})
//	answer, err := Greet.Call(ctx, server, "Ada")
//
// What always holds: when the test has ended, the handlers have returned, and no goroutine, port or file of the two nodes is left.
//
// Faults of a network and virtual time are not in this package, but in plugins/sim.
package qstest
