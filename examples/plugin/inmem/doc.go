// Package inmem is a plugin on the whole contract of package carrier: a network inside one process, without sockets, clocks or goroutines.
//
//	net := inmem.New()
//	qs.Open("mem://alice", qs.Config{HG: hg.Config{NA: na.Config{Plugins: []na.Plugin{net}}}})
//
// Read it in this order:
//
//  1. network.go: what the classes of a network share. Open gives a class its name and its promises, Check and Resolve say what a name of a peer
//     looks like, and NewCarrier makes the carrier of each context.
//  2. port.go, Dial and receiveHello: how a session begins. The dialer sends its HELLO, the other side calls Core.Admit and answers with its own, and
//     the dialer calls Session.Greet.
//  3. port.go, Flush and end.Room, Frame, Piece: what na has to send is pulled while there is room.
//  4. port.go, Poll and receive: what has arrived is delivered, under the lock of the context that it is for.
//  5. port.go, Cut: how a session ends, from either side.
//
// How a frame travels from a context a to a context b:
//
//	a: Flush (a locked) ─► Session.Pull ─► end.Frame ─► event in b's inbox ─► b's Core.PollSoon
//	b: Poll (the goroutine that drives b) ─► Lock ─► Session.Deliver, or Place and Placed ─► Unlock
//
// The only lock of the plugin is the one of an inbox. It is taken inside the lock of a context and nothing is called under it.
//
// A plugin whose peers are other processes replaces the inbox by what carries bytes: Header.Append encodes a frame, ParseHeader decodes it.
// One that has streams of bytes needs none of this: see examples/plugin/unixsock.
package inmem
