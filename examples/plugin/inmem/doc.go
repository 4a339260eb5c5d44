// Package inmem is a plugin that implements the whole contract of package carrier: a network inside one
// process, without sockets, clocks or goroutines.
//
//	net := inmem.New()
//	qs.Open("mem://alice", qs.Config{HG: hg.Config{NA: na.Config{Plugins: []na.Plugin{net}}}})
//
// Read it in this order:
//
//  1. network.go: the state shared by the classes of a network. Open determines the name of a class and what the network guarantees, Check and
//     Resolve handle the names of peers, and NewCarrier creates the carrier of each context.
//  2. port.go, Dial and receiveHello: how a session begins. The dialer sends its HELLO, the other side calls Core.Admit and answers with its
//     own HELLO, and the dialer calls Session.Greet.
//  3. port.go, Flush and end.Room, Frame, Piece: data to send is pulled from na while there is room.
//  4. port.go, Poll and receive: arrived data is delivered under the lock of the receiving context.
//  5. port.go, Cut: how either side ends a session.
//
// A frame travels from a context a to a context b as follows:
//
//	a: Flush (a locked) ─► Session.Pull ─► end.Frame ─► event in b's inbox ─► b's Core.PollSoon
//	b: Poll (the goroutine that drives b) ─► Lock ─► Session.Deliver, or Place and Placed ─► Unlock
//
// The plugin's only lock is that of an inbox. It is acquired while holding a context's lock, and no function
// is called while it is held.
//
// A plugin whose peers are other processes replaces the inbox with a means of transporting bytes:
// Header.Append encodes a frame, and ParseHeader decodes it. A plugin based on byte streams needs none of
// this; see examples/plugin/unixsock.
package inmem
