// Package tcp is the TCP transport of package na: one connection for each pair of contexts with a session, and on
// Linux a second one for bulk data.
//
//	tcp://10.0.0.7:9000     listen there, or dial it
//	tcp://:9000  tcp://:0   listen on every address of the machine; port 0: the system chooses
//	tcp://eth1:9000         listen on the address of a network interface
//	tcp://                  do not listen, only dial
//
// On Linux the goroutine that drives Progress reads the sockets itself: they are in the context's epoll set, bulk data
// is read directly into registered memory, and there are no goroutines for connections. On other systems, and with
// Options.Portable, each connection has two goroutines that use net.Conn, with one more copy.
//
//	     epoll                      stream                  session
//	socket ─ Ready ─► readv ─► In.Got, Parse ─► Session.Deliver, Place
//	socket ◄─ writev ◄──── Out.Fill, Gather ◄── Session.Pull          one writer at a time, any goroutine, never blocks
//
// The canonical name of a class is IP:port. Host names are resolved by Lookup, IPv4 first. A class that does not listen
// has a private name; peers answer it on the session that it has opened.
//
// If two processes dial each other at the same time, one of the two connections is kept; package na decides which. An
// accepted connection names a context in its HELLO and is passed to that context, whichever context has accepted it.
//
// Invariants: no descriptor is closed while a goroutine may use its number; no lock is held in a system call that may
// block; user memory is used by the kernel only during a system call that does not block. So a canceled operation
// releases its memory at once, whatever the peer does, and the connection stays usable: the rest of a piece that was
// interrupted is sent as zeroes, or read and dropped.
//
// With Options.TLS every connection uses TLS 1.3 below the frames, also the one for bulk data. The handshake runs on a
// goroutine of its own; the bytes and the time of a peer are limited until it has completed.
//
// The package authenticates peers but does not authorize them; see hg.Config.Authorize.
package tcp
