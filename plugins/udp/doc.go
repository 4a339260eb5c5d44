// Package udp is the plugin for datagrams: one socket for all peers of a class.
//
//	engine ── Link ── peer ── arq.Machine ── door ── socket ═══ datagrams
//	                  frames, views    packets
//
// What makes datagrams reliable is in internal/arq; this package has the sockets, copies frames and memory into packets and
// out of them, and says who is who. Packets are neither encrypted nor authenticated: beyond loopback a class listens only with
// Options.Trusted.
//
// A program that imports it reaches addresses of the form udp://host:port. It keeps every rule of natest.
//
// A class that listens has one port for all its contexts, and one socket, which whoever leads one of them reads for all (door.go).
// A context of a class that does not has a socket of its own. Datagrams are read and sent in batches, and bulk data is copied, without
// the lock of the endpoint (send.go). Those of one size to one peer are one for the system (trains_linux.go).
package udp
