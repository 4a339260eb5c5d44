// Package netroute chooses among the IP addresses of a host name those that this machine can reach, and knows the zones of IPv6 addresses.
//
//	name ─► resolver ─► addresses of both families ─► One ─► those of one family, which has a route
//
// It sends nothing: the system is asked for a route by connecting a datagram socket.
package netroute
