// Package udp is the plugin for datagrams: one socket for all peers of a context.
//
//	engine ── Link ── peer ──► arq.Machine ──► socket ═══ datagrams
//	                           frames, views   packets
//
// What makes datagrams reliable is in internal/arq; this package has the sockets, copies frames and memory into packets and
// out of them, and says who is who. Packets are neither encrypted nor authenticated: beyond loopback a class listens only with
// Options.Trusted.
//
// It is not registered yet: give New to na.Config.Plugins. It keeps every rule of natest. What is missing:
//
//   - A context has a port of its own, and the first one tells peers the ports of the others: when it is closed, new peers no
//     longer find those.
//   - Datagrams are sent and received one by one, copied and sent under the lock of the endpoint. On paths beyond this machine
//     the size of datagrams is found out by trying, and the system may fragment them.
package udp
