// Package unixsock is a plugin over unix sockets, on package streamnet: a function that dials, one that listens, and two that say what
// names look like.
//
//	qs.Open("unix:///run/app/server.sock", qs.Config{HG: hg.Config{NA: na.Config{Plugins: []na.Plugin{unixsock.New()}}}})
//
// Read it in this order:
//
//  1. unixsock.go: New is the whole plugin. For your own network replace Dial and Listen, then look at Check and Verify.
//  2. unixsock_test.go, TestConformance: the suite of package na/natest. Its rules cover matching, flow control, cancellation, memory, and how
//     sessions begin and end. Run it with -race.
//  3. unixsock_test.go, TestTour: two processes, the second of which is killed while it has a request.
//
// An address is the absolute path of the socket. The file is removed when the class closes; one that a killed process has left
// is removed by the next that listens there, once it is sure that nobody answers. Everybody who may write to the file may connect: protect the folder.
package unixsock
