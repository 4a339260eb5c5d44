// Package tcp is the TCP transport of package na. Each pair of contexts with a session uses one connection and, on
// Linux, a second one for bulk data.
//
//	tcp://10.0.0.7:9000     listen there, or dial it
//	tcp://:9000  tcp://:0   listen on every address of the machine; port 0: the system chooses
//	tcp://eth1:9000         listen on the address of a network interface
//	tcp://                  do not listen, only dial
//
// On Linux the goroutine that drives Progress reads the sockets itself. The sockets are in the context's epoll set,
// bulk data is read directly into registered memory, and connections need no goroutines. On other systems, and with
// Options.Portable, each connection has two goroutines that use net.Conn, at the cost of an additional copy.
//
//	     epoll                      stream                  session
//	socket ─ Ready ─► readv ─► In.Got, Parse ─► Session.Deliver, Place
//	socket ◄─ writev ◄──── Out.Fill, Gather ◄── Session.Pull          one writer at a time, any goroutine, never blocks
//
// The canonical name of a class is IP:port. Lookup resolves host names, preferring IPv4. A class that does not listen
// has a private name, and peers reach it through the session that it has opened.
//
// If two processes dial each other at the same time, package na decides which of the two connections is kept. An
// accepted connection names a context in its HELLO and is passed to that context, regardless of which context accepted
// it.
//
// Invariants: No descriptor is closed while a goroutine may use its number. No lock is held during a system call that
// may block. The kernel accesses user memory only during system calls that do not block. A canceled operation therefore
// releases its memory at once, whatever the peer does, and the connection remains usable: the rest of an interrupted
// piece is sent as zeros, or is read and discarded.
//
// With Options.TLS every connection, including the one for bulk data, carries its frames over TLS 1.3. The handshake
// runs on its own goroutine. Until it has completed, both the time and the number of bytes that a peer may use are
// limited.
//
// The package authenticates peers but does not authorize them; see hg.Config.Authorize.
package tcp
