// Package udp is the plugin for datagrams: one socket for all peers of a class.
//
//	session ── peer ── arq.Machine ── shared ── socket ═══ datagrams
//	         frames, views    packets
//
// Package internal/arq makes datagrams reliable. This package has the sockets, copies frames and memory into packets and out of
// them, and keeps the names of peers.
//
// With Options.TLS each association has a conn (conn.go), which lies between arq and the socket: a handshake of TLS 1.3 (handshake.go),
// then packets that internal/protect seals in the memory that they are sent from, and opens where they have come to. Peers whose
// address is not proven are answered from nothing (guard.go). Without it packets are neither encrypted nor authenticated: beyond
// loopback a class listens only with Options.Trusted.
//
// A program that imports it can use addresses of the form udp://host:port. It passes every rule of natest.
//
// A class that listens has one port for all its contexts, and one socket, which whoever leads one of them reads for all (sharedsocket.go).
// A context of a class that does not has a socket of its own. Datagrams are read and sent in batches, and bulk data is copied, without
// the lock of the endpoint (send.go). Those of one size to one peer are one for the system (trains_linux.go).
package udp
