// Package unixsock is a plugin over unix sockets, based on package streamnet. It consists of a function that
// dials, one that listens, and two that validate names.
//
//	qs.Open("unix:///run/app/server.sock", qs.Config{HG: hg.Config{NA: na.Config{Plugins: []na.Plugin{unixsock.New()}}}})
//
// Read it in this order:
//
//  1. unixsock.go: New is the whole plugin. For your own network replace Dial and Listen, and then review Check and Verify.
//  2. unixsock_test.go, TestConformance: the suite of package na/natest. Its rules cover matching, flow control, cancellation, memory, and how
//     sessions begin and end. Run it with -race.
//  3. unixsock_test.go, TestTour: two processes, the second of which is killed while it holds a request.
//
// An address is the absolute path of the socket. The file is removed when the class closes. If a killed
// process has left the file, the next class that listens there removes it, after verifying that no process
// answers. Every user with write permission for the file may connect, so protect its directory.
package unixsock
