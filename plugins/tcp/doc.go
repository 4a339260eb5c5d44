// Package tcp carries package na over TCP: one connection for each pair of contexts that talk, on Linux a second one for
// bulk data.
//
//	tcp://10.0.0.7:9000     listen there, or dial it
//	tcp://:9000  tcp://:0   listen on every address of the machine; port 0: the system chooses
//	tcp://eth1:9000         listen on the address of a network interface
//	tcp://                  originate only
//
// On Linux the goroutine that drives Progress reads the sockets itself: they are in the context's epoll set, bulk data
// is read straight into registered memory, and there is no goroutine for each connection. Elsewhere, and with
// Options.Portable, two goroutines for each connection do the same over net.Conn, with one more copy.
//
//	     epoll                      stream                  session
//	socket ─ Ready ─► readv ─► In.Got, Parse ─► Session.Deliver, Place
//	socket ◄─ writev ◄──── Out.Fill, Gather ◄── Session.Pull          one writer at a time, any goroutine, never waits
//
// The canonical name of a class is IP:port. Host names are resolved by Lookup, IPv4 first. A class that does not listen
// has a private name; peers answer it on the session that it opened.
//
// Of two connections that two processes dial to each other at the same time one stays: package na decides. A
// connection that comes in names the context that it wants, and is handed to it whichever context accepted it.
//
// What holds always: no descriptor is closed while a goroutine may use its number; no lock is held across a system call
// that may wait; memory of an operation is lent to the kernel for one call that does not wait, never longer. So a
// canceled operation lets go of its memory at once, whatever the peer does, and the connection stays usable: the rest
// of a piece that was cut off is sent as zeroes, or read and dropped.
//
// With Options.TLS every connection speaks TLS 1.3 under the frames, the one for bulk data too. The handshake has a
// goroutine of its own; what a peer may do and say before it has ended is bounded.
//
// Not here: deciding what a peer may do once it has proven who it is; see hg.Config.Authorize.
package tcp
