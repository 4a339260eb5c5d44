// Package udp is the plugin for datagrams: one socket for all peers of a class.
//
//	session ── peer ── arq.Machine ── shared ── socket ═══ datagrams
//	         frames, views    packets
//
// Package internal/arq makes datagrams reliable. This package has the sockets, copies frames and
// memory into packets and out of them, and resolves the addresses of peers.
//
// With Options.TLS each association has a conn (conn.go), which lies between arq and the socket: a
// handshake of TLS 1.3 (handshake.go), then packets that internal/protect encrypts and decrypts in
// place. A peer whose address is not proven is answered without keeping state for it (guard.go).
// Without TLS packets are neither encrypted nor authenticated: beyond loopback a class listens only
// with Options.Trusted.
//
// A program that imports it can use addresses of the form udp://host:port. It passes every rule of
// natest.
//
// A class that listens has one port and one socket for all its contexts; the poller of any of them
// reads for all (sharedsocket.go). Otherwise each context has a socket of its own. Datagrams are
// read and sent in batches, and bulk data is copied, without the lock of the endpoint (send.go).
// Datagrams of one size to one peer are passed to the system as one (trains_linux.go).
package udp
