// Package udp is the UDP transport of package na. It uses one socket for all peers of a class.
//
//	session ── peer ── arq.Machine ── shared ── socket ═══ datagrams
//	         frames, views    packets
//
// Package internal/arq implements reliable delivery. This package manages the sockets, copies
// frames and memory into and out of packets, and resolves the addresses of peers.
//
// With Options.TLS each association has a conn (conn.go), which lies between arq and the socket. It
// performs a TLS 1.3 handshake (handshake.go), after which internal/protect encrypts and decrypts
// packets in place. No state is kept for a peer that has not proven that it receives at its address
// (guard.go). Without TLS, packets are neither encrypted nor authenticated, so a class listens on a
// non-loopback address only with Options.Trusted.
//
// A program that imports this package can use addresses of the form udp://host:port. The transport
// passes all tests of package natest.
//
// A class that listens has one port and one socket for all its contexts, and the poller of any
// context reads the socket for all of them (sharedsocket.go). If the class does not listen, each
// context has its own socket. On Linux, bulk data without TLS arrives at a second socket with the
// same address (bulksocket_linux.go), and is sent and received in turns that are short while
// messages arrive (turn.go), so that messages do not wait behind it. Datagrams are received and sent
// in batches. Bulk data is copied, and
// datagrams are sent, without holding the endpoint's lock (send.go). Datagrams of the same size to
// the same peer are passed to the system as a single message (trains_linux.go).
package udp
