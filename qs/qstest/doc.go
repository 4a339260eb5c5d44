// Package qstest provides utilities for testing services built on package qs. Serve starts a server
// and a client for the duration of a test. Wait waits for a channel and also works in the
// simulator.
//
//	test ── Serve(t, register) ──► client node ══ tcp, loopback ══► server node ── register's handlers
//	     ◄── Peer                   at the end of the test, the client is closed, then the server
//
// For example, to test a call:
//
//	server := qstest.Serve(t, func(node *qs.Node) {
//		Greet.Handle(node, func(ctx context.Context, name string) (string, error) { return "hello, " + name, nil })
//	})
//	answer, err := Greet.Call(ctx, server, "Ada")
//
// When the test has ended, the handlers have returned, and all goroutines, ports and files of the
// two nodes have been released.
//
// For network faults and virtual time, see plugins/sim.
package qstest
